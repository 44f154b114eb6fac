"""How far a member has come in its run, what it answers in a survey, and how it follows the next roster."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from zooid.core.jobs.run_requests import NO_WISH, Wish
from zooid.core.runs.roster import Answer, Roster, StepNumbers
from zooid.schedule.step_state import Phase, StepState
from zooid.schedule.succession import grains_of
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.step.stage_runner import FinishedGrains
from zooid.worker.step.step_protocols import TrainedState
from zooid.worker.step.verdict import StageNumbers, finite


@dataclass
class Agenda:
    """Things to do when a step ends. Only the first member has wishes that others do not know."""

    noted: Wish = NO_WISH
    """Wishes that travel with this member's next vote."""
    agreed: Wish = NO_WISH
    """Wishes that all members know."""
    is_checkpoint_due: bool = False
    """Whether the checkpoint rule asks for a checkpoint."""
    is_stop_asked: bool = False
    """Whether a person has asked to stop the run. It stays true, so that members which repeat the end agree."""
    batch: tuple[int, float] | None = None
    """Batch size and learning-rate factor from the next step on, as the vote says; None if they stay."""


@dataclass
class MemberProgress:
    """The position of a member in the history of its run. It outlives rosters."""

    step: StepState
    scale: LossScale
    agenda: Agenda = field(default_factory=Agenda)
    prepared: StageNumbers | None = None
    """The numbers of this member's stage for the step that it is prepared for."""
    applied: StepNumbers | None = None
    """Numbers of the last step that this member applied under a roster."""
    is_between_steps: bool = False
    """True until evaluation, checkpoint and early stop after the last step are done."""
    finished: FinishedGrains | None = None
    """This member's part of the next step, if its pipeline computed it under a roster that could not commit it."""

    def answer(
        self,
        member: str,
        roster: Roster,
        num_grains: Callable[[int], int],
        *,
        num_evaluations: int,
        owes_checkpoint: bool,
        suspects: Collection[str],
        knows_attempt: bool = True,
    ) -> Answer:
        """This member's answer to the survey that replaces the roster, under which it does nothing any more.

        Without `knows_attempt`, the step under way belongs to a planned roster that others may never hear of.
        """
        self.step = self.step.release()
        prepared = self.prepared if knows_attempt and self.step.phase is Phase.PREPARED else None
        return Answer(
            member=member,
            change=roster.change,
            num_applied=self.step.num_applied,
            is_prepared=prepared is not None,
            is_finite=prepared is None or prepared.is_finite,
            square_sum=finite(prepared.square_sum) if prepared else 0.0,
            loss_sum=finite(prepared.loss_sum) if prepared else 0.0,
            weight=finite(prepared.weight) if prepared else 0.0,
            applied=self.applied,
            has_finished=knows_attempt and self._has_finished(roster.replica_of(member), roster, num_grains),
            is_between_steps=self.is_between_steps,
            num_evaluations=num_evaluations,
            owes_checkpoint=owes_checkpoint,
            suspects=tuple(sorted(suspects)),
        )

    def _has_finished(self, replica: int | None, roster: Roster, num_grains: Callable[[int], int]) -> bool:
        """Whether the member has the sums of all grains that this roster gives it, not only of earlier ones."""
        if self.finished is None or replica is None:
            return False
        own_grains = grains_of(roster, self.finished.step, num_grains(self.finished.step))[replica]
        return set(self.finished.grains) >= set(own_grains)

    def forget_attempt(self, state: TrainedState) -> None:
        """Forget what was computed under a planned roster that others never heard of."""
        if self.finished is not None or self.step.phase is Phase.PREPARED:
            state.drop()
        self.finished = self.prepared = None
        if self.step.phase is not Phase.APPLIED:
            self.step = self.step.drop()

    def follow(self, roster: Roster, member: str, state: TrainedState) -> None:
        """Continue under the next roster, which does not roll back, with the state that the member has."""
        assert roster.ruling is not None
        if roster.ruling.kind == "unfinished":
            has_sums = self.finished is not None or self.step.phase is Phase.PREPARED
            replica = roster.replica_of(member)
            goes_on = replica is not None and bool(roster.computed and roster.computed[replica])
            self.prepared = None
            if has_sums and not goes_on:
                self.finished = None
                state.drop()
        elif self.finished is not None:
            if self.step.num_applied > roster.resume_step:
                state.drop()  # the member had begun the next step, which the others had not
            self.finished = None  # the sums of a step that stands are reduced already
        self.step = self.step.obey(roster)
        self.is_between_steps = roster.is_between_steps
