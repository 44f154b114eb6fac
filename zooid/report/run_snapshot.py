"""A run at one moment: members, progress, cost, and what changed, from its events and records alone."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from zooid.core.jobs.run_requests import LOSS
from zooid.core.records import Record
from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Evaluated,
    Event,
    MemberExited,
    MemberStarted,
    MemberTrained,
    PhaseStarted,
    RosterChanged,
    RunStarted,
    StepCommitted,
)
from zooid.core.runs.observed_run import ENDED, ObservedRun, RunState
from zooid.core.runs.roster import Roster, RosterSeat
from zooid.report.progress import Pace
from zooid.report.run_changes import RunChange, changes_in
from zooid.report.run_costs import cost_so_far

_NUM_RECENT = 20
"""Number of last steps that give the present pace."""
_NUM_KEPT = 20
"""Largest number of evaluations, checkpoints and changes in a snapshot."""
_NUM_POINTS = 32
"""Number of points of the loss curve."""

MemberState = Literal["starting", "trains", "done", "ended", "lost"]
"""A member is `done` when it has reported the end of all its steps. One that is `ended` trained in a run that nobody
trains any more; one that is `lost` left the others behind."""


class MemberSnapshot(Record, frozen=True, kw_only=True):
    """One member of the run."""

    name: str
    replica: int | None
    """Replica of the member; None for a copy, which computes no grains."""
    stage: int | None
    layers: tuple[int, int] | None
    """The first layer of its stage, and the layer after the last one."""
    share: int | None
    """Number of grains of a full step that its replica computes; None for a copy or a lost member."""
    state: MemberState
    since_s: float | None
    """Unix time since which it is in this state; None if it is not known."""
    why: str = ""
    """How a lost member ended, in words."""


class EvaluationSnapshot(Record, frozen=True, kw_only=True):
    """The result of one evaluation."""

    step: int
    """Number of steps before it."""
    numbers: dict[str, float]
    """The loss and the job's metrics, by name."""
    at_s: float | None
    """Unix time of the evaluation; None if it is not known."""


class CheckpointSnapshot(Record, frozen=True, kw_only=True):
    """One complete checkpoint."""

    step: int
    is_best: bool
    at_s: float | None
    """Unix time at which it was complete; None if it is not known."""


class RunSnapshot(Record, frozen=True, kw_only=True):
    """Everything that `zooid watch` shows."""

    store: str
    state: RunState
    at_s: float
    """Unix time of the snapshot."""
    run: str = ""
    layout: str = ""
    transport: str = ""
    phase: str = ""
    """What a coordinator does before members train."""
    num_steps: int | None = None
    step: int = 0
    """Number of steps that are done; of a run that nobody trains, number of steps in its last checkpoint."""
    epoch: int | None = None
    num_grains: int | None = None
    """Number of grains of a full step."""
    members: tuple[MemberSnapshot, ...] = ()
    loss: float | None = None
    """Loss of the last step."""
    loss_curve: tuple[float, ...] = ()
    """Mean losses of equally long parts of the run so far, in order."""
    evaluations: tuple[EvaluationSnapshot, ...] = ()
    """The last evaluations."""
    checkpoints: tuple[CheckpointSnapshot, ...] = ()
    """The last checkpoints that were saved, also those that were deleted since."""
    step_s: float | None = None
    """Mean time of the last steps."""
    predicted_step_s: float | None = None
    samples_per_s: float | None = None
    """Throughput of the last steps."""
    started_at_s: float | None = None
    """Unix time at which the run began."""
    left_s: float | None = None
    """Time until the last step at the present pace; None if nobody trains."""
    usd: float | None = None
    """Cost of members so far at the plan's prices; None if it is not known."""
    predicted_usd: float | None = None
    prices: str = ""
    changes: tuple[RunChange, ...] = ()
    """The last changes."""


def snapshot_of(observed: ObservedRun) -> RunSnapshot:
    """Summarise what a run's folder tells."""
    events, present = observed.events, observed.events[observed.num_earlier :]
    starts = [event for event in events if isinstance(event, RunStarted)]
    steps = [event for event in events if isinstance(event, StepCommitted)]
    recent = [event for event in present if isinstance(event, StepCommitted)][-_NUM_RECENT:]
    phases = [event.phase for event in events if isinstance(event, PhaseStarted)]
    pace = Pace()
    for event in recent:
        pace.add(event)
    plan, roster = observed.plan, observed.roster
    num_steps = observed.num_steps or (starts[-1].num_steps if starts else None)
    batches = [event for event in events if isinstance(event, BatchChanged)]
    if batches and observed.state not in ENDED:
        num_steps = batches[-1].num_steps
    done = steps[-1].step + 1 if steps else starts[-1].first_step if starts else 0
    return RunSnapshot(
        store=observed.store,
        state=observed.state,
        at_s=observed.at_s,
        run=roster.run if roster is not None else starts[-1].run if starts else "",
        layout=_layout(roster, plan.layout if plan is not None else ""),
        transport=plan.transport if plan is not None else "",
        phase=phases[-1] if phases and observed.state == "preparing" else "",
        num_steps=num_steps,
        step=done if observed.saved_step is None else observed.saved_step,
        epoch=steps[-1].epoch if steps else None,
        num_grains=sum(roster.shares) if roster is not None else None,
        members=_members(observed, present),
        loss=steps[-1].loss if steps else None,
        loss_curve=tuple(_thinned([step.loss for step in steps])),
        evaluations=tuple(_evaluations(observed)[-_NUM_KEPT:]),
        checkpoints=tuple(_checkpoints(observed)[-_NUM_KEPT:]),
        step_s=pace.step_s or None,
        predicted_step_s=starts[-1].predicted_step_s if starts else None,
        samples_per_s=pace.samples_per_s or None,
        started_at_s=starts[0].at_s if starts else None,
        left_s=None if observed.state in ENDED or num_steps is None else _left_s(recent, num_steps),
        usd=cost_so_far(observed),
        predicted_usd=starts[-1].predicted_usd if starts else None,
        prices=starts[-1].prices if starts else "",
        changes=tuple(changes_in(events)[-_NUM_KEPT:]),
    )


def _thinned(values: Sequence[float], num_points: int = _NUM_POINTS) -> list[float]:
    """Mean values of at most `num_points` equally long parts.

    >>> _thinned([1.0, 3.0, 5.0, 7.0], 2)
    [2.0, 6.0]
    """
    num_parts = max(1, min(num_points, len(values)))
    cuts = [len(values) * part // num_parts for part in range(num_parts + 1)]
    return [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(cuts) if begin < end]


def _evaluations(observed: ObservedRun) -> list[EvaluationSnapshot]:
    """All evaluations that are known, from events and from the ledger of a checkpoint, by step."""
    found = {
        evaluation.step: EvaluationSnapshot(
            step=evaluation.step, numbers={name: evaluation.value(name) for name in evaluation.numbers}, at_s=None
        )
        for evaluation in observed.ledger.evaluations
    }
    for event in observed.events:
        if isinstance(event, Evaluated):
            numbers = {LOSS: event.loss, **event.metrics}
            found[event.step] = EvaluationSnapshot(step=event.step, numbers=numbers, at_s=event.at_s)
    return [found[step] for step in sorted(found)]


def _checkpoints(observed: ObservedRun) -> list[CheckpointSnapshot]:
    """All checkpoints that are known, by step."""
    found: dict[int, CheckpointSnapshot] = {}
    if observed.ledger_step:
        is_best = observed.ledger.best_step == observed.ledger_step
        found[observed.ledger_step] = CheckpointSnapshot(step=observed.ledger_step, is_best=is_best, at_s=None)
    for event in observed.events:
        if isinstance(event, CheckpointSaved):
            found[event.step] = CheckpointSnapshot(step=event.step, is_best=event.is_best, at_s=event.at_s)
    return [found[step] for step in sorted(found)]


def _layout(roster: Roster | None, planned: str) -> str:
    """Replicas × stages of the roster, and as planned if that differs."""
    if roster is None:
        return planned
    present = f"{roster.num_replicas}x{roster.num_stages}"
    return present if planned in ("", present) else f"{present}, planned {planned}"


def _left_s(recent: Sequence[StepCommitted], num_steps: int) -> float | None:
    """The remaining time at the present pace, with everything that happens between steps."""
    if len(recent) < 2:
        return None
    pace_s = (recent[-1].at_s - recent[0].at_s) / (len(recent) - 1)
    return max(0.0, pace_s) * (num_steps - recent[-1].step - 1)


def _members(observed: ObservedRun, present: Sequence[Event]) -> tuple[MemberSnapshot, ...]:
    """All members since the run was last resumed: those of the roster in rank order, then those that it has lost."""
    roster, first = observed.roster, observed.first_roster
    if roster is None or first is None:
        return ()
    spans = observed.plan.partition if observed.plan is not None else ()
    started = {event.member: event.at_s for event in present if isinstance(event, MemberStarted)}
    trained = {event.member: event.at_s for event in present if isinstance(event, MemberTrained)}
    exited = {event.member: event for event in present if isinstance(event, MemberExited)}
    has_ended = observed.state in ENDED

    def seated(seat: RosterSeat, *, is_left_out: bool) -> MemberSnapshot:
        name, since_s, why = seat.name, started.get(seat.name), ""
        state: MemberState
        if name in exited or name in observed.gone or is_left_out:
            state = "lost"
            end = exited.get(name)
            since_s = end.at_s if end is not None else _left_out_s(name, present)
            why = end.exit_text if end is not None else ""
        elif name in trained:
            state, since_s = "done", trained[name]
        elif has_ended:
            state, since_s = "ended", None
        else:
            state = "trains" if name in started else "starting"
        replica = None if is_left_out else roster.replica_of(name)
        return MemberSnapshot(
            name=name,
            replica=replica,
            stage=seat.stage,
            layers=spans[seat.stage] if seat.stage < len(spans) else None,
            share=None if replica is None else roster.shares[replica],
            state=state,
            since_s=since_s,
            why=why,
        )

    left_out = [seat for seat in first.seats if seat.name not in roster.stages]
    return (
        *(seated(seat, is_left_out=False) for seat in roster.seats),
        *(seated(seat, is_left_out=True) for seat in left_out),
    )


def _left_out_s(member: str, present: Sequence[Event]) -> float | None:
    """When the others went on without a member."""
    changes = [event for event in present if isinstance(event, RosterChanged) and member not in event.members]
    return changes[0].at_s if changes else None
