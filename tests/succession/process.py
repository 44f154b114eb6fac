"""One process of a run as the model sees it: where it stands, by the real rules of steps and rosters.

Every function returns the process after one thing has happened to it. When and in which order things happen is decided
by the worlds in which processes live: `model.py` tries every order, `schedules.py` random ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from zooid.core.runs.roster import Answer, Roster, StepNumbers
from zooid.schedule.step_state import Phase, StepState, Vote
from zooid.schedule.succession import uncomputed_grains_of

NUM_GRAINS = 4
EXCLUDED, OUTSIDE = -1, -2
"""In place of a roster's number: of a process that a roster has left out, and of one that has not joined yet."""

Attempt = tuple[int, int, bool]
"""The number of a roster, a step, and whether the roster was planned.

Sums that are made under different rosters may differ in rounding. A planned roster may lose against another one of the
same number, so their messages are told apart.
"""
Part = tuple[tuple[int, int], ...]
"""Grains whose sums somebody has, each as its step and its number in the step."""


@dataclass(frozen=True)
class Sums:
    """The reduced gradients of one stage."""

    attempt: Attempt
    grains: Part
    """Every grain that was added, as often as it was."""

    @property
    def step(self) -> int:
        return self.attempt[1]


@dataclass(frozen=True)
class Process:
    """What a process knows, and what it has done."""

    name: str
    state: StepState
    roster: int = 0
    """Number of the roster that it obeys, or EXCLUDED, or OUTSIDE."""
    stage: int = 0
    has_state: bool = True
    """False for a newcomer that has not received the state of its stage."""
    history: tuple[tuple[Sums, StepNumbers], ...] = ()
    """What its parameters contain, in order: sums, and the numbers that they were applied with."""
    num_loaded: int = 0
    """How much of its history it has received, and not applied itself."""
    held: Sums | None = None
    """The reduced gradients that it holds and has not applied."""
    is_settled: bool = True
    """False until all members of its roster hold the step that stands."""
    kept: Part = ()
    """Grains of its own that it has computed under earlier rosters, and has the sums of."""
    is_planned: bool = False
    """Whether its roster was planned ahead."""

    @property
    def attempt(self) -> Attempt:
        return (self.roster, self.state.step, self.is_planned)

    @property
    def computes(self) -> bool:
        """True if it is computing a step under its roster."""
        return self.has_state and self.is_settled and self.state.is_bound and self.state.phase is Phase.RUNNING

    @property
    def lacks_gradients(self) -> bool:
        """True if a step stands that it has no gradients of."""
        return self.has_state and not self.is_settled and self.state.is_bound and self.state.phase is Phase.RUNNING

    @property
    def has_voted(self) -> bool:
        """True if it is waiting for the votes of others."""
        waits = self.state.phase is Phase.PREPARED or (not self.is_settled and self.state.phase is Phase.APPLIED)
        return self.has_state and self.state.is_bound and waits


def own_part(process: Process, roster: Roster) -> Part:
    """What a member adds to its stage's sums: what it has kept and what it computes. A copy adds nothing.

    A member does not look at what it has kept: a wrong grain would be added like any other.
    """
    replica = roster.replica_of(process.name)
    if replica is None:
        return ()
    step = process.state.step
    computed = uncomputed_grains_of(roster, step, NUM_GRAINS)[replica]
    return (*process.kept, *((step, grain) for grain in computed))


def may_have_computed(process: Process, roster: Roster) -> tuple[bool, ...]:
    """The possible values of `has_computed` when the process answers; one value where they make no difference."""
    return (True, False) if process.computes and own_part(process, roster) != process.kept else (False,)


def part_at_answer(process: Process, roster: Roster, *, has_computed: bool) -> Part:
    """What the process keeps of the step under way when it answers.

    It keeps either everything that its roster gives it or nothing. A member that is prepared has computed everything.
    Before it begins the rest of its grains, a member may still have the sums that it kept before. It must not call them
    finished, no roster may list them, and it drops them when it obeys: here it drops them at once.
    """
    if not process.has_state or not process.is_settled or process.state.phase is Phase.APPLIED:
        return ()
    part = own_part(process, roster)
    has_all = has_computed or process.state.phase is Phase.PREPARED or part == process.kept
    return part if has_all else ()


def keeps_sums(process: Process, roster: Roster) -> bool:
    """True if the roster lets the process go on with the sums that it has kept."""
    replica = roster.replica_of(process.name)
    return replica is not None and bool(roster.computed and roster.computed[replica])


def peers(roster: Roster, stage: int) -> list[str]:
    """Everyone who takes part in this stage's reduce."""
    return [roster.seats[rank].name for rank in roster.ranks_of_stage(stage)]


def stage_numbers(attempt: Attempt, stage: int, num_stages: int) -> tuple[float, float, float]:
    """Loss sum, weight and Σg² that a stage finds. They say which sums they belong to."""
    is_last = stage == num_stages - 1
    square_sum = float(1 + attempt[0] * 100 + attempt[1] * 10 + stage + attempt[2] / 2)
    return (0.5 + attempt[1], 1.0 + attempt[0], square_sum) if is_last else (0.0, 0.0, square_sum)


@cache
def voted_numbers(attempt: Attempt, num_stages: int) -> StepNumbers:
    """What the votes of all members on a step add up to."""
    found = [stage_numbers(attempt, stage, num_stages) for stage in range(num_stages)]
    return StepNumbers(loss_sum=found[-1][0], weight=found[-1][1], square_sums=tuple(sums for _, _, sums in found))


def begun(process: Process, num_steps: int) -> Process:
    """The process in its next step, if it may begin one."""
    state = process.state
    is_ready = process.roster >= 0 and process.has_state and process.is_settled and state.phase is Phase.APPLIED
    if not is_ready or not state.is_bound or state.num_applied == num_steps:
        return process
    return replace(process, state=state.begin())


def prepared(process: Process, contributions: Iterable[Part]) -> Process:
    """All of its stage have added their grains."""
    grains = tuple(sorted(grain for part in contributions for grain in part))
    return replace(process, state=process.state.prepare(), held=Sums(process.attempt, grains))


def received(process: Process, sums: Sums) -> Process:
    """Another member of its stage has handed over the gradients of the step that stands."""
    return replace(process, state=process.state.prepare(), held=sums)


def taken_over(process: Process, source: Process) -> Process:
    """A newcomer has received, and confirmed, the whole state of its stage."""
    assert (source.has_state, source.stage, source.roster) == (True, process.stage, process.roster)
    state = replace(source.state, is_bound=True)
    has_begun = source.is_settled and state.phase is Phase.RUNNING
    return replace(
        process,
        state=StepState.resumed(state.step) if has_begun else state,
        has_state=True,
        history=source.history,
        num_loaded=len(source.history),
        held=source.held,
        is_settled=source.is_settled,
    )


def committed(process: Process, roster: Roster, num_votes: int) -> Process:
    """It has the votes of all members: it applies what it holds, unless it has, and the step is settled."""
    state, ruling = process.state, roster.ruling
    if state.phase is Phase.APPLIED:
        return replace(process, is_settled=True)
    assert process.held is not None
    total = Vote(num_prepared=float(num_votes), num_finite=float(num_votes), weight=1.0)
    state.decide(total, roster.num_voters)
    stands = not process.is_settled and ruling is not None and ruling.numbers is not None
    numbers = ruling.numbers if stands else voted_numbers(process.attempt, roster.num_stages)  # type: ignore[union-attr]
    assert numbers is not None
    assert process.held.step == state.step == len(process.history), "it applies another step than its next"
    history = (*process.history, (process.held, numbers))
    return replace(process, state=state.apply(), history=history, held=None, is_settled=True, kept=())


def released(
    process: Process, roster: Roster, *, has_computed: bool, suspects: tuple[str, ...] = ()
) -> tuple[Process, Answer]:
    """It answers a survey. `has_computed` says whether its pipeline has ended its grains of the step under way."""
    kept = part_at_answer(process, roster, has_computed=has_computed)
    process = replace(process, state=process.state.release(), kept=kept)
    if not process.has_state:
        return process, Answer(
            member=process.name,
            change=process.roster,
            has_state=False,
            num_applied=0,
            is_prepared=False,
            suspects=suspects,
        )
    held = process.held if process.state.phase is Phase.PREPARED else None
    found = stage_numbers(held.attempt, process.stage, roster.num_stages) if held is not None else (0.0, 0.0, 0.0)
    return process, Answer(
        member=process.name,
        change=process.roster,
        num_applied=process.state.num_applied,
        is_prepared=held is not None,
        loss_sum=found[0],
        weight=found[1],
        square_sum=found[2],
        applied=process.history[-1][1] if len(process.history) > process.num_loaded else None,
        has_finished=bool(kept),
        suspects=suspects,
    )


def obeying(process: Process, roster: Roster, checkpoint: Sequence[tuple[Sums, StepNumbers]]) -> Process:
    """It reads the next roster and takes its seat. The checkpoint is that of the roster's step, if all roll back."""
    ruling = roster.ruling
    assert ruling is not None
    if process.name not in roster.stages:
        return Process(process.name, StepState.resumed(0).release(), EXCLUDED, has_state=False)
    seated = replace(process, roster=roster.change, stage=roster.stages[process.name], kept=(), is_planned=False)
    if ruling.kind == "rolled_back":
        state, history = StepState.resumed(roster.resume_step), tuple(checkpoint)
        return replace(
            seated, state=state, has_state=True, history=history, num_loaded=len(history), held=None, is_settled=True
        )
    if process.name in roster.newcomers:
        state = StepState.resumed(roster.resume_step)
        return replace(seated, state=state, has_state=False, history=(), num_loaded=0, held=None, is_settled=True)
    assert (process.has_state, process.stage) == (True, seated.stage), "it has the state of another stage"
    state = process.state.obey(roster)
    is_prepared = ruling.kind == "stands" and state.phase is Phase.PREPARED
    seated = replace(
        seated,
        state=state,
        held=process.held if is_prepared else None,
        is_settled=ruling.kind != "stands",
        kept=process.kept if ruling.kind == "unfinished" and keeps_sums(process, roster) else (),
    )
    if ruling.kind == "stands" and state.phase is Phase.APPLIED:
        assert seated.history[-1][1] == ruling.numbers, "it has applied other sums than those that stand"
    return seated


def check_samples(process: Process) -> None:
    """Every sample of every step that the process has applied counts exactly once."""
    for step, (sums, _) in enumerate(process.history):
        expected = [(step, grain) for grain in range(NUM_GRAINS)]
        assert sorted(sums.grains) == expected, f"samples are lost or doubled: {process}"


def check_agreement(one: Process, other: Process, rosters: Sequence[Roster]) -> None:
    """Two processes have applied the same sums with the same numbers, unless a rollback lies between them."""
    first, last = sorted((one.roster, other.roster))
    if first < 0 or any(
        each.ruling is not None and each.ruling.kind == "rolled_back" for each in rosters[first + 1 : last + 1]
    ):
        return
    common = min(len(one.history), len(other.history))
    for (sums, numbers), (other_sums, other_numbers) in zip(one.history[:common], other.history[:common], strict=True):
        assert (sums.attempt, numbers) == (other_sums.attempt, other_numbers), f"two histories: {one}, {other}"
