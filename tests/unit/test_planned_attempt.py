"""What a member did under a planned roster is not told in a survey of the roster before, and is not lost either."""

from tests.succession.rosters import first_roster, planned
from zooid.core.runs.roster import StepNumbers
from zooid.schedule.planned_rosters import planned_roster
from zooid.schedule.step_state import Phase, StepState
from zooid.schedule.succession import successor
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.step.member_progress import MemberProgress
from zooid.worker.step.verdict import StageNumbers

NUMBERS = StepNumbers(loss_sum=1.0, weight=1.0, square_sums=(1.0,))


def test_an_attempt_is_told_only_in_a_survey_of_its_own_roster() -> None:
    """The member is prepared for step 1 under the planned roster, which is not in the store yet."""
    before = first_roster(2, 1)
    change = planned(before, (before.members, before.copies), (1, 3))
    following = planned_roster(before, change, 1, NUMBERS)
    progress = MemberProgress(StepState(1, Phase.PREPARED), LossScale(1.0), prepared=StageNumbers(1.0, 1.0, 1.0, 1.0))
    told = {
        roster.change: progress.answer(
            "m00",
            roster,
            lambda step: 4,
            num_evaluations=0,
            owes_checkpoint=False,
            suspects=(),
            knows_attempt=roster is following,
        )
        for roster in (before, following)
    }
    assert [(answer.num_applied, answer.is_prepared) for answer in told.values()] == [(1, False), (1, True)]
    rulings = [
        successor(roster, [told[roster.change]], checkpoint_step=lambda: 0, num_grains=lambda step: 4).ruling
        for roster in (before, following)
    ]
    assert [ruling and ruling.kind for ruling in rulings] == ["unfinished", "stands"]
