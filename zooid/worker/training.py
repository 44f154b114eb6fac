"""The loop of a member: one transaction after the other, until the run's last step is applied."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from zooid.core.abort import Abort
from zooid.core.checkpoint import Ledger
from zooid.core.events import Evaluated, StepCommitted, StoppedEarly
from zooid.core.job import Job
from zooid.core.timeline import Timeline
from zooid.core.wishes import NO_WISH, Wish
from zooid.schedule.actions import Action, Kind
from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import SamplePlan, split_grains
from zooid.schedule.steps import Decision, StepState, Vote
from zooid.worker.callbacks import Callbacks
from zooid.worker.counting import Counted
from zooid.worker.executor import Executor, Recording
from zooid.worker.precision import LossScale
from zooid.worker.seat import Seat
from zooid.worker.stage_runner import StageRunner
from zooid.worker.standing import Standing
from zooid.worker.state import TrainingState
from zooid.worker.underway import Underway
from zooid.worker.verdict import Verdict

_LEAST_SCALE = 2.0**-14
"""A loss scale below this does not explain an overflow any more: the numbers themselves are not finite."""


class Keeper(Protocol):
    """Writes checkpoints beside the training, and makes them count when all members have written their parts."""

    def is_due(self, num_steps: int) -> bool:
        """Whether this member finds that one should be written after so many steps."""

    def is_written(self) -> bool:
        """Whether this member's part of the one that is under way is in the store; raises what went wrong."""

    def begin(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """Take the state after so many steps, and write it in the background; none may be under way."""

    def save(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """The same, but wait for one that is under way, and do nothing where this state has been taken already."""

    def complete(self) -> None:
        """All members have written their parts."""


@dataclass(frozen=True)
class Assignment:
    """What one member trains, and where it sits."""

    job: Job
    samples: SamplePlan
    shape: StepShape
    seat: Seat
    device: torch.device


class Trainer:
    """Runs steps under one roster."""

    def __init__(
        self,
        assignment: Assignment,
        runner: StageRunner,
        state: TrainingState,
        keeper: Keeper,
        callbacks: Callbacks,
        abort: Abort,
        scale: LossScale,
        standing: Standing,
        evaluate: Callable[[int, int], Evaluated] | None = None,
    ) -> None:
        self._job = assignment.job
        self._samples = assignment.samples
        self._shape = assignment.shape
        self._seat = assignment.seat
        self._runner = runner
        self._state = state
        self._keeper = keeper
        self._callbacks = callbacks
        self._standing = standing
        self._evaluate = evaluate
        self._scale = scale
        self._noted = NO_WISH
        """Wishes of the first member that the others do not know of yet."""
        self._agreed = NO_WISH
        """Wishes that all members know of, to be fulfilled when the step ends."""
        self._is_due = False
        """Whether the checkpoint rule asks for a checkpoint when the step ends."""
        self._step = StepState.resumed(self._seat.roster.resume_step)
        self._start_s = 0.0
        self._open: Counted | None = None
        """A step that is applied, but not judged."""
        is_alone_on_gpu = len(self._seat.roster.members) == 1 and assignment.device.type == "cuda"
        self._is_patient = is_alone_on_gpu and self._job.autocast != "fp16" and self._job.on_weights is None
        self._schedules: dict[int, StepSchedule] = {}
        self._executor = Executor(self._seat.name, self, abort)
        self._last_full: tuple[int, Recording] | None = None

    @property
    def num_applied(self) -> int:
        return self._step.num_applied

    @property
    def last_timeline(self) -> tuple[int, Timeline] | None:
        """Of the last full step, with its number."""
        return None if self._last_full is None else (self._last_full[0], self._last_full[1].timeline())

    @property
    def scale(self) -> LossScale:
        return self._scale

    @property
    def ledger(self) -> Ledger:
        return self._standing.ledger

    def run(self) -> int:
        """Train to the end of the run; returns the number of steps that the state then contains."""
        if self.num_applied == 0 and self._job.evaluate_first:
            self._fulfil(self._wishes_of_evaluation())
        while self.num_applied < self._samples.num_steps and not self.ledger.stopped:
            self.run_step()
            self.end_step()
        self._settle()
        return self.num_applied

    def end_step(self) -> None:
        """What comes between two steps: callbacks, evaluations, checkpoints, and an early stop."""
        wishes, self._agreed = self._agreed, NO_WISH
        if self._is_evaluation_due():
            wishes |= self._wishes_of_evaluation()
        if self.num_applied == self._samples.num_steps:
            self._settle()  # no vote follows in which the first member could tell: it notes what is best by itself
            self._standing.fulfil(self._noted, self.num_applied, may_stop=False)
        self._fulfil(wishes)

    def _is_evaluation_due(self) -> bool:
        every = self._job.evaluate_every or self._samples.steps_per_epoch
        return self.num_applied % every == 0 or self.num_applied == self._samples.num_steps

    def _wishes_of_evaluation(self) -> Wish:
        """Evaluate, where the job has data to do so; what it wishes by the result."""
        if self._evaluate is None:
            return NO_WISH
        self._settle()
        event = self._evaluate(self._samples.epoch_of(max(self.num_applied - 1, 0)), self.num_applied)
        wishes = self._standing.add(event)
        if values := self._standing.values:
            self._state.follow(values[-1])
        self._noted |= self._callbacks.tell(event)
        if self._callbacks.may_wish:
            [shared] = self._seat.add_up([float(self._noted.value)])
            wishes |= Wish(int(shared))
            self._noted = NO_WISH
        return wishes

    def _fulfil(self, wishes: Wish) -> None:
        """Save what is to be saved. A run that stops writes its last checkpoint when it ends, as any run does."""
        is_due, self._is_due = self._is_due, False
        self._standing.fulfil(wishes, self.num_applied, may_stop=self.num_applied < self._samples.num_steps)
        if self.ledger.stopped:
            self._settle()
            self._callbacks.tell_stop(StoppedEarly(at_s=time.time(), step=self.num_applied, reason=self.ledger.stopped))
        elif wishes & (Wish.SAVE | Wish.KEEP_BEST):
            self._settle()
            self._keeper.save(self.num_applied, self._scale, self.ledger)
        elif is_due:
            self._settle()
            self._keeper.begin(self.num_applied, self._scale, self.ledger)

    def run_step(self) -> None:
        """One step, from its first action to its apply; if anything goes wrong, nothing of it remains."""
        self._start_s = time.perf_counter()
        self._step = self._step.begin()
        step = self._step.step
        indices = self._samples.grains(step)
        schedule = self._schedule(len(indices))
        replica, stage = self._seat.replica, self._seat.stage
        try:
            self._runner.begin_step(step, indices, len(schedule.grains[replica]), self._scale)
            recording = self._executor.run(schedule.lists[replica][stage], schedule.needs[replica][stage])
        except BaseException:
            self.drop()
            raise
        if self._samples.step_size(step) == self._samples.batch_size:
            self._last_full = (step, recording)

    def drop(self) -> None:
        """Forget an unfinished step; it can be run again."""
        if self._step.num_applied == self._step.step:
            self._runner.drop()
            self._step = self._step.drop()

    def compute(self, action: Action) -> None:
        if action.kind is Kind.COMMIT:
            self._commit()
        else:
            self._runner.compute(action)

    def begin(self, action: Action) -> Underway:
        return self._runner.begin(action)

    def _schedule(self, num_grains: int) -> StepSchedule:
        if num_grains not in self._schedules:
            schedule = self._shape.step(split_grains(num_grains, self._seat.roster.shares))
            check_schedule(schedule)
            self._schedules[num_grains] = schedule
        return self._schedules[num_grains]

    def _commit(self) -> None:
        """Prepared → one small all-reduce of votes over the whole roster → apply, skip, or drop everywhere."""
        self._step = self._step.prepare()
        counted = Counted(
            self._step,
            self._runner.count(),
            self._runner.weight,
            self._runner.nominal_weight,
            self._state.learning_rate,
            self._start_s,
        )
        if self._is_patient and counted.weight > 0:
            self._commit_patiently(counted)
            return
        verdict = self._judge(counted)
        match verdict.decision:
            case Decision.DROP:
                raise verdict.refusal(self._seat.name)
            case Decision.SKIP:
                self._state.advance()
            case Decision.APPLY:
                self._state.apply(verdict.scale(self._scale.factor))
        if self._job.autocast == "fp16":
            self._scale = self._scale.after(is_finite=verdict.decision is Decision.APPLY)
        self._step = self._step.apply()
        if verdict.total.num_saved == len(self._seat.roster.members):
            self._keeper.complete()
        self._is_due = verdict.total.num_due > 0
        self._agreed, self._noted = Wish(int(verdict.total.wishes)), NO_WISH
        if verdict.decision is Decision.APPLY:
            self._callbacks.show_weights(self.num_applied)
        self._report(verdict, counted)

    def _commit_patiently(self, counted: Counted) -> None:
        """Apply the step, and judge the one before, whose numbers are there by now.

        To wait for a GPU's numbers in every step would leave it idle until its next work is prepared. A verdict that
        ends the run may be late: nothing of a step is told or saved before its verdict.
        """
        self._settle()
        self._agreed, self._noted = self._noted, NO_WISH
        self._state.apply(counted.scale(self._job))
        self._open = counted
        self._step = self._step.apply()
        if self._keeper.is_written():
            self._keeper.complete()
        self._is_due = self._keeper.is_due(self.num_applied)

    def _settle(self) -> None:
        """Judge the step that was applied without a verdict, if there is one."""
        counted, self._open = self._open, None
        if counted is not None:
            verdict = self._judge(counted)
            if verdict.decision is not Decision.APPLY:
                raise verdict.refusal(self._seat.name)
            self._report(verdict, counted)

    def _judge(self, counted: Counted) -> Verdict:
        own = counted.vote(
            self._scale.factor,
            is_first_replica=self._seat.replica == 0,
            is_saved=self._keeper.is_written(),
            is_due=self._keeper.is_due(counted.step.step + 1),
            wishes=self._noted,
        )
        total = Vote.of(self._seat.add_up(own.values()))
        may_skip = self._job.autocast == "fp16" and self._scale.factor > _LEAST_SCALE
        decision = counted.step.decide(total, len(self._seat.roster.members), may_skip=may_skip)
        return Verdict(self._job, counted.step.step, own, total, decision, counted.nominal_weight)

    def _report(self, verdict: Verdict, counted: Counted) -> None:
        self._noted |= self._callbacks.tell(
            StepCommitted(
                at_s=time.time(),
                step=verdict.step,
                epoch=self._samples.epoch_of(verdict.step),
                loss=verdict.loss,
                num_samples=self._samples.step_size(verdict.step),
                step_s=time.perf_counter() - counted.start_s,
                gradient_norm=verdict.norm,
                learning_rate=counted.learning_rate,
                is_skipped=verdict.decision is Decision.SKIP,
            )
        )
