"""The loop of a member: one transaction after the other, until the run's last step is applied."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from zooid.core.abort import Abort
from zooid.core.errors import JobError
from zooid.core.events import Evaluated, Event, StepCommitted
from zooid.core.job import Job
from zooid.core.timeline import Timeline
from zooid.schedule.actions import Action, Kind
from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import SamplePlan, split_grains
from zooid.schedule.steps import Decision, StepState, Vote
from zooid.worker.counting import Counted
from zooid.worker.executor import Executor, Recording
from zooid.worker.precision import LossScale
from zooid.worker.seat import Seat
from zooid.worker.stage_runner import StageRunner
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

    def begin(self, num_steps: int, scale: LossScale) -> None:
        """Take the state after so many steps, and write it in the background."""

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
        emit: Callable[[Event], None],
        abort: Abort,
        scale: LossScale,
        evaluate: Callable[[int, int], Evaluated] | None = None,
    ) -> None:
        self._job = assignment.job
        self._samples = assignment.samples
        self._shape = assignment.shape
        self._seat = assignment.seat
        self._runner = runner
        self._state = state
        self._keeper = keeper
        self._emit = emit
        self._evaluate = evaluate
        self._scale = scale
        self._step = StepState.resumed(self._seat.roster.resume_step)
        self._start_s = 0.0
        self._open: Counted | None = None
        """A step that is applied, but not judged."""
        is_alone_on_gpu = len(self._seat.roster.members) == 1 and assignment.device.type == "cuda"
        self._is_patient = is_alone_on_gpu and self._job.autocast != "fp16"
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

    def run(self) -> int:
        """Train to the end of the run; returns the number of steps that the state then contains."""
        while self.num_applied < self._samples.num_steps:
            self.run_step()
            epoch, is_inside = divmod(self.num_applied, self._samples.steps_per_epoch)
            if not is_inside and self._evaluate is not None:
                self._settle()
                self._tell(self._evaluate(epoch - 1, self.num_applied))
        self._settle()
        return self.num_applied

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
        if verdict.total.num_due > 0:
            self._keeper.begin(self.num_applied, self._scale)
        self._report(verdict, counted)

    def _commit_patiently(self, counted: Counted) -> None:
        """Apply the step, and judge the one before, whose numbers are there by now.

        To wait for a GPU's numbers in every step would leave it idle until its next work is prepared. A verdict that
        ends the run may be late: nothing of a step is told or saved before its verdict.
        """
        self._settle()
        self._state.apply(counted.scale(self._job))
        self._open = counted
        self._step = self._step.apply()
        if self._keeper.is_written():
            self._keeper.complete()
        if self._keeper.is_due(self.num_applied):
            self._settle()
            self._keeper.begin(self.num_applied, self._scale)

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
        )
        total = Vote.of(self._seat.add_up(own.values()))
        may_skip = self._job.autocast == "fp16" and self._scale.factor > _LEAST_SCALE
        decision = counted.step.decide(total, len(self._seat.roster.members), may_skip=may_skip)
        return Verdict(self._job, counted.step.step, own, total, decision, counted.nominal_weight)

    def _report(self, verdict: Verdict, counted: Counted) -> None:
        self._tell(
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

    def _tell(self, event: StepCommitted | Evaluated) -> None:
        """The first member speaks for all."""
        if self._seat.rank != 0:
            return
        self._emit(event)
        if self._job.on_event is not None:
            try:
                self._job.on_event(event)
            except Exception as error:
                raise JobError(f"job.on_event raised {type(error).__name__}: {error}") from error
