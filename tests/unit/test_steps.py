"""A step goes from its beginning to its apply, and a member from one roster to the next, in no other order."""

import math
from collections.abc import Callable
from typing import Literal

import pytest

from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Roster, RosterMember, Ruling, StepNumbers
from zooid.schedule.step_state import Decision, Phase, StepState, Vote

RUNNING = StepState(3, Phase.RUNNING)
PREPARED = StepState(3, Phase.PREPARED)
APPLIED = StepState(3, Phase.APPLIED)


def total(num_prepared: int, num_finite: int) -> Vote:
    return Vote(num_prepared=num_prepared, num_finite=num_finite, weight=1.0)


def test_a_step_runs_is_prepared_and_applied() -> None:
    state = StepState.resumed(0)
    assert state.num_applied == 0
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
    vote = Vote(num_prepared=1.0, num_finite=0.0, loss_sum=math.pi, weight=12.0, square_sums=(0.5, 0.25), paces=(0.1,))
    assert Vote.of(vote.values(), 2) == vote


@pytest.mark.parametrize("transition", [StepState.prepare, lambda state: state.decide(total(4, 4), 4), StepState.apply])
def test_who_has_answered_a_survey_does_nothing_more_under_its_roster(
    transition: Callable[[StepState], object],
) -> None:
    state = (RUNNING if transition is StepState.prepare else PREPARED).release()
    with pytest.raises(ScheduleError, match="has answered a survey at step 3 cannot"):
        transition(state)


def next_roster(kind: Literal["stands", "unfinished", "rolled_back"], step: int) -> Roster:
    numbers = StepNumbers(loss_sum=1.0, weight=1.0, square_sums=(1.0,)) if kind == "stands" else None
    return Roster(
        run="run",
        number=1,
        resume_step=step,
        members=(RosterMember(name="m0", stage=0, replica=0),),
        shares=(1,),
        ruling=Ruling(kind=kind, numbers=numbers),
    )


@pytest.mark.parametrize(
    ("before", "kind", "step", "after"),
    [
        (PREPARED, "stands", 3, PREPARED),
        (RUNNING, "stands", 3, RUNNING),
        (APPLIED, "stands", 3, APPLIED),
        (StepState(4, Phase.PREPARED), "stands", 3, APPLIED),
        (PREPARED, "unfinished", 3, StepState.resumed(3)),
        (RUNNING, "unfinished", 3, StepState.resumed(3)),
        (StepState.resumed(3), "unfinished", 3, StepState.resumed(3)),
        (PREPARED, "rolled_back", 1, StepState.resumed(1)),
        (APPLIED, "rolled_back", 3, StepState.resumed(3)),
    ],
)
def test_a_member_obeys_the_next_roster(
    before: StepState, kind: Literal["stands", "unfinished", "rolled_back"], step: int, after: StepState
) -> None:
    assert before.release().obey(next_roster(kind, step)) == after


@pytest.mark.parametrize(
    ("before", "kind", "message"),
    [
        (StepState.resumed(2), "stands", "has applied 2 steps, but roster 000001 begins with step 4"),
        (APPLIED, "unfinished", "has applied 4 steps, but roster 000001 begins with step 3"),
    ],
)
def test_a_roster_that_does_not_follow_is_refused(
    before: StepState, kind: Literal["stands", "unfinished"], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        before.release().obey(next_roster(kind, 3))
