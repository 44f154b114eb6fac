"""The loop of a member: one step after the other, with evaluations, checkpoints and early stops between them."""

import time
from collections.abc import Callable

from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import NO_WISH, Wish
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.events import Evaluated, StoppedEarly
from zooid.core.runs.timeline import Timeline
from zooid.schedule.samples import SamplePlan
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.early_stop import Standing
from zooid.worker.member.seat import Seat
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.transactions import Agenda, Assignment, Keeper, Transactions


class Trainer:
    """Trains under one roster, from its resume step to the end of the run."""

    def __init__(
        self,
        assignment: Assignment,
        transactions: Transactions,
        state: TrainingState,
        keeper: Keeper,
        callbacks: Callbacks,
        standing: Standing,
        evaluate: Callable[[int, int], Evaluated] | None = None,
    ) -> None:
        self._job: Job = assignment.job
        self._samples: SamplePlan = assignment.samples
        self._seat: Seat = assignment.seat
        self._transactions = transactions
        self._state = state
        self._keeper = keeper
        self._callbacks = callbacks
        self._standing = standing
        self._evaluate = evaluate

    @property
    def num_applied(self) -> int:
        return self._transactions.num_applied

    @property
    def last_timeline(self) -> tuple[int, Timeline] | None:
        """Number and timeline of the last step that had a full batch."""
        last = self._transactions.last_full
        return None if last is None else (last[0], last[1].timeline())

    @property
    def scale(self) -> LossScale:
        return self._transactions.scale

    @property
    def ledger(self) -> Ledger:
        return self._standing.ledger

    def run(self) -> int:
        """Train to the end of the run; returns the number of steps that the state then contains.

        What the roster before has left undone comes first.
        """
        self._transactions.apply_standing()
        if self._transactions.place.is_between_steps:
            self.end_step()
        while self.num_applied < self._samples.num_steps and not self.ledger.stopped:
            self.run_step()
            self.end_step()
        self._transactions.settle()
        return self.num_applied

    def run_step(self) -> None:
        """Run one step; if anything goes wrong, nothing of it remains."""
        self._transactions.run_step()

    def end_step(self) -> None:
        """Do what comes between two steps: evaluations, checkpoints, and an early stop."""
        agenda = self._agenda
        wishes = agenda.agreed
        if self._is_evaluation_due():
            wishes |= self._wishes_of_evaluation()
        if self.num_applied == self._samples.num_steps:
            # No vote follows in which the first member could tell its wishes: it notes by itself what is best.
            self._transactions.settle()
            self._standing.fulfil(agenda.noted, self.num_applied, may_stop=False)
        self._fulfil(wishes)
        self._transactions.place.is_between_steps = False

    @property
    def _agenda(self) -> Agenda:
        return self._transactions.agenda

    def _is_evaluation_due(self) -> bool:
        every = self._job.evaluate_every or self._samples.steps_per_epoch
        return self.num_applied % every == 0 or self.num_applied == self._samples.num_steps

    def _wishes_of_evaluation(self) -> Wish:
        """Evaluate, where the job has data to do so, and return what the job wishes by the result."""
        if self._evaluate is None:
            return NO_WISH
        self._transactions.settle()
        known = self._standing.known(self.num_applied)  # from before the roster was replaced
        event = known or self._evaluate(self._samples.epoch_of(max(self.num_applied - 1, 0)), self.num_applied)
        wishes = self._standing.add(event)
        if known is None and (values := self._standing.values):
            self._state.follow(values[-1])
        self._agenda.noted |= self._callbacks.tell(event)
        if self._callbacks.may_wish:
            [shared] = self._seat.add_up([float(self._agenda.noted.value)])
            wishes |= Wish(int(shared))
            self._agenda.noted = NO_WISH
        return wishes

    def _fulfil(self, wishes: Wish) -> None:
        """Save what is to be saved. A run that stops writes its last checkpoint when it ends, as any run does."""
        agenda = self._agenda
        is_due, agenda.is_checkpoint_due, agenda.agreed = agenda.is_checkpoint_due, False, NO_WISH
        self._standing.fulfil(wishes, self.num_applied, may_stop=self.num_applied < self._samples.num_steps)
        if self.ledger.stopped:
            self._transactions.settle()
            self._callbacks.tell_stop(StoppedEarly(at_s=time.time(), step=self.num_applied, reason=self.ledger.stopped))
        elif wishes & (Wish.SAVE | Wish.KEEP_BEST):
            self._transactions.settle()
            self._keeper.save(self.num_applied, self.scale, self.ledger)
        elif is_due:
            self._transactions.settle()
            self._keeper.begin(self.num_applied, self.scale, self.ledger)
