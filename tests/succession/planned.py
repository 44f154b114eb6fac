"""What a process does in a planned change, by the real rules of steps and rosters. Each function is one act."""

from dataclasses import replace

from tests.succession.process import EXCLUDED, Process, Sums
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster, StepNumbers
from zooid.schedule.planned_rosters import planned_roster
from zooid.schedule.step_state import Phase, StepState, Vote


def following(roster: Roster, change: PlannedChange, process: Process, first_ready: int) -> Roster | None:
    """The roster that a planned change puts in the place of this one, after the process has seen all votes on a step.

    The guests' roster has been agreed on before. It lasts for one step.
    """
    if (roster.change - 1 if roster.guests else roster.change) != change.change:
        return None
    is_ready = process.state.step >= first_ready
    votes = [_ballot(change, is_ready=is_ready, is_first=rank == 0) for rank in range(roster.num_voters)]
    total = Vote(
        newest_change=sum(vote.newest_change for vote in votes), ready_change=sum(vote.ready_change for vote in votes)
    )
    if not roster.guests and not total.agrees_on_change(roster.num_voters):
        return None
    return planned_roster(roster, change, process.state.num_applied, process.history[-1][1])


def _ballot(change: PlannedChange, *, is_ready: bool, is_first: bool) -> Vote:
    attempt = float(change.attempt)
    return Vote(newest_change=attempt if is_first else 0.0, ready_change=attempt if is_ready else 0.0)


def switched(process: Process, roster: Roster) -> Process:
    """It has seen all votes, and goes on under the planned roster, which has a seat for it."""
    stage = next(seat.stage for seat in roster.seats if seat.name == process.name)
    return replace(process, roster=roster.change, stage=stage, state=process.state.obey(roster), is_planned=True)


def arrived(process: Process, roster: Roster) -> Process:
    """A process that joins has found the roster whose guest it is."""
    stage = next(seat.stage for seat in roster.guests if seat.name == process.name)
    state = StepState.resumed(roster.resume_step)
    return replace(process, roster=roster.change, stage=stage, state=state, has_state=False, is_planned=True)


def hosted(process: Process, source: Process, roster: Roster) -> Process:
    """A guest has received the state that a member had when the roster began."""
    history = source.history[: roster.resume_step]
    assert (source.stage, len(history)) == (process.stage, roster.resume_step), "a guest gets a wrong state"
    return replace(process, has_state=True, history=history, num_loaded=len(history))


def retreated(process: Process, roster: Roster) -> Process:
    """It is under the roster before again, as if it had done nothing under a planned one that is not in the store."""
    state = process.state if process.state.phase is Phase.APPLIED else process.state.drop()
    stage = roster.stages[process.name]
    return replace(
        process,
        roster=roster.change,
        stage=stage,
        state=state,
        held=None,
        kept=(),
        is_planned=roster.is_planned,
    )


def caught_up(process: Process, roster: Roster) -> Process:
    """It finds a planned roster without having seen the votes before it, and applies the step that they were about."""
    if process.name not in roster.stages:
        return ended(process)
    assert roster.ruling is not None
    assert roster.ruling.numbers is not None
    state, history, held = process.state.obey(roster), process.history, process.held
    if state.num_applied < roster.resume_step:
        state, history, held = _applied(state, process, roster.ruling.numbers)
    assert len(history) == roster.resume_step, "a planned roster begins after another step"
    stage = roster.stages[process.name]
    assert process.stage == stage, "it has the state of another stage"
    return replace(
        process,
        roster=roster.change,
        state=state,
        history=history,
        held=held,
        kept=(),
        is_settled=True,
        is_planned=True,
    )


def _applied(
    state: StepState, process: Process, numbers: StepNumbers
) -> tuple[StepState, tuple[tuple[Sums, StepNumbers], ...], None]:
    assert process.held is not None, "it has no gradients of the step before a planned change"
    assert process.held.step == state.step == len(process.history), "it applies another step than its next"
    return state.apply(), (*process.history, (process.held, numbers)), None


def ended(process: Process) -> Process:
    """It has left, or its hosts have to agree without it."""
    return Process(process.name, StepState.resumed(0).release(), EXCLUDED, has_state=False)
