"""A step is applied by everyone or by nobody, whoever crashes at whatever moment."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pytest

from zooid.core.errors import ScheduleError
from zooid.schedule.steps import Decision, Phase, StepState, Vote

RUNNING = StepState(3, Phase.RUNNING)
PREPARED = StepState(3, Phase.PREPARED)
APPLIED = StepState(3, Phase.APPLIED)


def total(num_prepared: int, num_finite: int) -> Vote:
    return Vote(num_prepared=num_prepared, num_finite=num_finite, weight=1.0)


def test_a_step_runs_is_prepared_and_applied() -> None:
    state = StepState.resumed(0)
    assert (state.num_applied, state.held_steps) == (0, ())
    for step in range(3):
        state = state.begin()
        assert (state.step, state.phase, state.num_applied) == (step, Phase.RUNNING, step)
        state = state.prepare()
        assert (state.step, state.phase, state.num_applied) == (step, Phase.PREPARED, step)
        assert state.decide(total(4, 4), 4) is Decision.APPLY
        state = state.apply()
        assert (state.step, state.phase, state.num_applied) == (step, Phase.APPLIED, step + 1)


def test_a_member_resumes_with_exactly_the_steps_of_its_checkpoint() -> None:
    state = StepState.resumed(17)
    assert state.num_applied == 17
    assert state.begin().step == 17


@pytest.mark.parametrize("state", [RUNNING, PREPARED], ids=["running", "prepared"])
def test_a_dropped_step_is_the_next_to_run(state: StepState) -> None:
    dropped = state.drop()
    assert dropped.num_applied == 3
    assert dropped.begin() == RUNNING


@pytest.mark.parametrize(
    ("state", "transition", "message"),
    [
        (RUNNING, StepState.begin, "running at step 3 cannot begin a step"),
        (PREPARED, StepState.begin, "prepared at step 3 cannot begin a step"),
        (PREPARED, StepState.prepare, "prepared at step 3 cannot be prepared"),
        (APPLIED, StepState.prepare, "applied at step 3 cannot be prepared"),
        (RUNNING, StepState.apply, "running at step 3 cannot apply"),
        (APPLIED, StepState.apply, "applied at step 3 cannot apply"),
        (APPLIED, StepState.drop, "step 3 is applied and cannot be dropped"),
        (RUNNING, lambda state: state.decide(total(4, 4), 4), "running at step 3 cannot decide"),
        (APPLIED, lambda state: state.decide(total(4, 4), 4), "applied at step 3 cannot decide"),
    ],
)
def test_every_other_transition_is_refused(
    state: StepState, transition: Callable[[StepState], object], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        transition(state)


def test_one_member_that_is_not_finite_drops_the_step_for_all() -> None:
    assert PREPARED.decide(total(4, 3), 4) is Decision.DROP


def test_a_step_without_weight_is_dropped() -> None:
    assert PREPARED.decide(Vote(num_prepared=4, num_finite=4, weight=0.0), 4) is Decision.DROP


@pytest.mark.parametrize("num_prepared", [0, 3, 5])
def test_a_vote_without_everyone_is_refused(num_prepared: int) -> None:
    with pytest.raises(ScheduleError, match=f"step 3 was voted on with {num_prepared} of 4 members prepared"):
        PREPARED.decide(total(num_prepared, num_prepared), 4)


def test_a_vote_survives_its_values() -> None:
    vote = Vote(num_prepared=1.0, num_finite=0.0, loss_sum=math.pi, weight=12.0, gradient_square_sum=0.5)
    assert Vote.of(vote.values()) == vote


@pytest.mark.parametrize(
    ("state", "num_applied_by_anyone", "decision"),
    [
        (APPLIED, 4, None),
        (RUNNING, 3, Decision.DROP),
        (PREPARED, 3, Decision.DROP),
        (PREPARED, 4, Decision.APPLY),
    ],
)
def test_an_unfinished_step_is_applied_if_anyone_did_and_dropped_if_not(
    state: StepState, num_applied_by_anyone: int, decision: Decision | None
) -> None:
    assert state.resolve(num_applied_by_anyone) is decision


@pytest.mark.parametrize(
    ("state", "num_applied_by_anyone"),
    [(RUNNING, 4), (PREPARED, 5), (APPLIED, 5), (APPLIED, 3), (RUNNING, 2), (PREPARED, 2)],
)
def test_a_history_that_cannot_be_is_refused(state: StepState, num_applied_by_anyone: int) -> None:
    message = f"{state.phase.value} at step 3, but another applied {num_applied_by_anyone} steps"
    with pytest.raises(ScheduleError, match=message):
        state.resolve(num_applied_by_anyone)


# From here on, every interleaving of three members is explored, with a crash of any of them at any moment.

NUM_MEMBERS = 3
NUM_STEPS = 3


@dataclass(frozen=True)
class Member:
    """A member of the model: its state, the gradients it really has, the votes it has cast, and whether it lives."""

    state: StepState
    held: frozenset[int] = frozenset()
    votes: frozenset[tuple[int, bool]] = frozenset()
    """(step, finite) of every vote it published; objects in the store outlive their writer."""
    lives: bool = True

    def become(self, state: StepState, *, gained: int | None = None) -> "Member":
        """Move on; what the new state does not ask for is forgotten, what was never computed is not there."""
        had = self.held if gained is None else self.held | {gained}
        return replace(self, state=state, held=had.intersection(state.held_steps))


World = tuple[Member, ...]


def moves(world: World, rank: int, finite: bool) -> Iterator[Member]:
    """What a living member can become by its next action: begin, prepare, vote, or learn the verdict."""
    member = world[rank]
    step, cast = member.state.step, {voted for voted, _ in member.votes}
    match member.state.phase:
        case Phase.APPLIED if member.state.num_applied < NUM_STEPS:
            yield member.become(member.state.begin())
        case Phase.RUNNING:
            yield member.become(member.state.prepare(), gained=step)
        case Phase.PREPARED if step not in cast:
            yield replace(member, votes=member.votes | {(step, finite)})
        case Phase.PREPARED:
            votes = [ok for other in world for voted, ok in other.votes if voted == step]
            if len(votes) == NUM_MEMBERS:
                verdict = member.state.decide(total(len(votes), sum(votes)), NUM_MEMBERS)
                yield member.become(finished(member, verdict))
        case _:
            return


def finished(member: Member, decision: Decision | None) -> StepState:
    """The state after a decision, which must not need gradients that the member does not have."""
    if decision is None:
        return member.state
    if decision is Decision.DROP:
        return member.state.drop()
    assert member.state.step in member.held, f"{member} has to apply gradients that it does not hold"
    return member.state.apply()


def explore(never_finite: tuple[int, int] | None) -> set[World]:
    """Every world that can be reached; `never_finite` is a (rank, step) whose gradients are not finite."""
    start: World = (Member(StepState.resumed(0)),) * NUM_MEMBERS
    seen, todo = {start}, [start]
    while todo:
        world = todo.pop()
        for rank, member in enumerate(world):
            if not member.lives:
                continue
            finite = (rank, member.state.step) != never_finite
            dead = [replace(member, lives=False)] if sum(other.lives for other in world) > 1 else []
            for after in chain(moves(world, rank, finite), dead):
                following = (*world[:rank], after, *world[rank + 1 :])
                if following not in seen and not has_given_up(following):
                    seen.add(following)
                    todo.append(following)
    return seen


def has_given_up(world: World) -> bool:
    """A member that dropped a step by vote and begins it again would vote a second time: that is the next roster's."""
    return any(
        member.state.phase is Phase.RUNNING and any(voted == member.state.step for voted, _ in member.votes)
        for member in world
    )


def resolved(world: World) -> list[Member]:
    """The survivors after they have met: everyone obeys `resolve`."""
    survivors = [member for member in world if member.lives]
    most = max(member.state.num_applied for member in survivors)
    return [member.become(finished(member, member.state.resolve(most))) for member in survivors]


@pytest.mark.parametrize(
    ("never_finite", "decisions"),
    [
        (None, {None, Decision.APPLY, Decision.DROP}),
        ((0, 1), {None, Decision.APPLY, Decision.DROP}),
        ((2, 0), {None, Decision.DROP}),
    ],
    ids=["all finite", "second step not finite", "first step not finite"],
)
def test_survivors_of_any_crash_agree_and_need_nothing_they_do_not_hold(
    never_finite: tuple[int, int] | None, decisions: set[Decision | None]
) -> None:
    worlds = explore(never_finite)
    assert {sum(member.lives for member in world) for world in worlds} == {1, 2, 3}, "some crashes were not explored"
    taken: set[Decision | None] = set()
    for world in worlds:
        before = [member.state.num_applied for member in world if member.lives]
        after = [member.state.num_applied for member in resolved(world)]
        assert len(set(after)) == 1, f"survivors of {world} ended with {after} applied steps"
        assert after[0] == max(before), "nobody's applied step may be lost, and nothing else may be applied"
        taken.update(member.state.resolve(max(before)) for member in world if member.lives)
    assert taken == decisions


def test_without_a_crash_everyone_can_reach_the_last_step() -> None:
    ends = [world for world in explore(None) if all(m.lives and m.state.num_applied == NUM_STEPS for m in world)]
    assert ends


def test_a_step_that_is_not_finite_is_applied_by_nobody() -> None:
    worlds = explore((1, 1))
    assert max(member.state.num_applied for world in worlds for member in world) == 1


def test_gradients_are_held_until_the_next_step_is_prepared() -> None:
    worlds = explore(None)
    for world in worlds:
        for member in world:
            applied = member.state.num_applied - 1
            is_prepared = member.state.phase is Phase.PREPARED
            assert member.held == {step for step in (applied + is_prepared,) if step >= 0}
