"""The loop of a member: one step after the other, with evaluations, checkpoints and early stops between them."""

import time
from collections.abc import Callable

from zooid.core.jobs.run_requests import NO_WISH, Wish
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.events import Evaluated, StoppedEarly
from zooid.core.runs.roster import Roster, StepNumbers
from zooid.core.runs.timeline import Timeline
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.evaluation_history import is_evaluation_due
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.stage_state import StageState
from zooid.worker.step.member_progress import Agenda
from zooid.worker.step.transactions import Assignment, Transactions


class Trainer:
    """Trains under one roster, from its resume step to the end of the run."""

    def __init__(
        self,
        assignment: Assignment,
        transactions: Transactions,
        state: StageState,
        keeper: CheckpointKeeper,
        callbacks: Callbacks,
        evaluate: Callable[[int, int], Evaluated] | None = None,
    ) -> None:
        """`evaluate` takes the epoch and the number of steps so far; None where the job evaluates nothing."""
        self._job = assignment.job
        self._samples = assignment.samples
        self._seat = assignment.seat
        self._batches = assignment.batches
        self._transactions = transactions
        self._training = state.training
        self._history = state.history
        self._keeper = keeper
        self._callbacks = callbacks
        self._evaluate = evaluate

    @property
    def num_applied(self) -> int:
        return self._transactions.progress.step.num_applied

    @property
    def last_timeline(self) -> tuple[int, Timeline] | None:
        """Number and timeline of the last step that had a full batch."""
        last = self._transactions.last_full
        return None if last is None else (last[0], last[1].timeline())

    @property
    def scale(self) -> LossScale:
        return self._transactions.progress.scale

    @property
    def ledger(self) -> Ledger:
        return self._history.ledger

    def run(self) -> Roster | None:
        """Train until a planned change gives the next roster, or to the end of the run, and then return None.

        Work that the roster before has left undone comes first.
        """
        self._transactions.apply_standing_step()
        if self._transactions.progress.is_between_steps:
            self.end_step()
        self._batches.foresee(self.num_applied)
        while self.num_applied < self._samples.num_steps and not self.ledger.stopped:
            self.run_step()
            self.end_step()
            is_over = self.num_applied == self._samples.num_steps or self.ledger.stopped
            if not is_over and (following := self._transactions.following_roster()) is not None:
                self._fulfil_last_wishes(following)
                if not self.ledger.stopped:
                    self._transactions.meter.turn_away()
                    return following
            self._batches.foresee(self.num_applied)
        self._transactions.settle()
        self._transactions.meter.finish()
        return None

    def catch_up(self, step: int, numbers: StepNumbers) -> None:
        """Bring the state to where a planned roster begins, though this member never trains under it.

        It may not have seen the votes on the step before, or which batch size begins, but all others have.
        """
        if self.num_applied < step:
            self._transactions.apply_planned(numbers)
        self._batches.begin(step, (numbers.batch_size, numbers.rate_factor) if numbers.batch_size else None)

    def run_step(self) -> None:
        """Run one step. If anything goes wrong, nothing of it remains."""
        self._transactions.run_step()

    def end_step(self) -> None:
        """Do what comes between two steps: evaluations, checkpoints, and an early stop."""
        agenda = self._agenda
        wishes = agenda.agreed
        self._batches.begin(self.num_applied, agenda.batch)
        if is_evaluation_due(self._job, self._samples, self.num_applied):
            wishes |= self._evaluation_wishes()
        if agenda.is_stop_asked and self.num_applied < self._samples.num_steps:
            wishes |= self._shared_wishes()  # no vote follows which could carry them
        if self.num_applied == self._samples.num_steps:
            # No vote follows in which the first member could tell its wishes: it notes by itself which step is best.
            self._transactions.settle()
            self._history.fulfil(agenda.noted, self.num_applied, may_stop=False)
        self._fulfil(wishes)
        self._transactions.progress.is_between_steps = False

    @property
    def _agenda(self) -> Agenda:
        return self._transactions.progress.agenda

    def _evaluation_wishes(self) -> Wish:
        """Evaluate, if the job has data for it, and return the wishes that follow from the result."""
        if self._evaluate is None:
            return NO_WISH
        self._transactions.settle()
        known = self._history.known(self.num_applied)  # from before the roster was replaced
        event = known or self._evaluate(self._samples.epoch_of(max(self.num_applied - 1, 0)), self.num_applied)
        wishes = self._history.add(event)
        if known is None and (values := self._history.values):
            self._training.follow(values[-1])
        self._agenda.noted |= self._callbacks.tell(event)
        if self._callbacks.may_wish:
            wanted = self._batches.wanted_for(self.num_applied)
            shared, batch_size, rate_factor = self._seat.add_up([float(self._agenda.noted.value), *wanted])
            wishes |= Wish(int(shared))
            self._batches.begin(self.num_applied, (int(batch_size), rate_factor) if batch_size else None)
        self._agenda.noted = NO_WISH
        return wishes

    def _shared_wishes(self) -> Wish:
        """The wishes that the first member has noted since the last vote."""
        if not self._callbacks.may_wish:
            return NO_WISH
        [shared] = self._seat.add_up([float(self._agenda.noted.value)])
        return Wish(int(shared))

    def _fulfil_last_wishes(self, following: Roster) -> None:
        """Fulfil what the first member has noted since the last vote, if it leaves now and never votes again."""
        seated = {seat.name for seat in following.seats}
        if self._seat.roster.seats[0].name not in seated and self._job.on_event is not None:
            wishes = self._shared_wishes()
            self._agenda.noted = NO_WISH
            self._fulfil(wishes)
            self._keeper.settle()  # a checkpoint is complete before the roster changes

    def _fulfil(self, wishes: Wish) -> None:
        """Save what must be saved. A run that stops writes its last checkpoint when it ends, as any run does."""
        agenda = self._agenda
        is_due, agenda.is_checkpoint_due, agenda.agreed = agenda.is_checkpoint_due, False, NO_WISH
        self._history.fulfil(
            wishes,
            self.num_applied,
            may_stop=self.num_applied < self._samples.num_steps,
            stop_reason=self._callbacks.stop_reason if agenda.is_stop_asked else "",
        )
        is_wished = bool(wishes & (Wish.SAVE | Wish.KEEP_BEST))
        if self.ledger.stopped or is_wished or is_due:
            self._transactions.settle()
        if self.ledger.stopped:
            self._callbacks.tell_stop(
                StoppedEarly(
                    at_s=time.time(),
                    step=self.num_applied,
                    reason=self.ledger.stopped,
                    by_request=self.ledger.by_request,
                )
            )
        elif is_wished:
            self._keeper.save(self.num_applied, self.scale, self.ledger)
        elif is_due:
            self._keeper.begin(self.num_applied, self.scale, self.ledger)
