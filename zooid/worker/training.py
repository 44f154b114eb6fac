"""The loop of a member: one transaction after the other, until the run's last step is applied."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from zooid.core.abort import Abort
from zooid.core.errors import TrainingError
from zooid.core.events import StepCommitted
from zooid.core.job import Job
from zooid.core.plan import Plan
from zooid.core.timeline import Timeline
from zooid.layers import Stage
from zooid.schedule.actions import Action, Kind
from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepSchedule, schedule_for
from zooid.schedule.samples import SamplePlan
from zooid.schedule.steps import Decision, StepState, Vote
from zooid.store import EventWriter
from zooid.worker.executor import Executor
from zooid.worker.stage_runner import Seat, StageRunner
from zooid.worker.state import TrainingState


@dataclass(frozen=True)
class Assignment:
    """What one member trains, and where it sits."""

    job: Job
    data: Any
    plan: Plan
    stage: Stage
    seat: Seat


class Trainer:
    """Runs steps under one roster."""

    def __init__(self, assignment: Assignment, state: TrainingState, events: EventWriter, abort: Abort) -> None:
        self._assignment = assignment
        self._seat = assignment.seat
        self._state = state
        self._events = events
        self._step = StepState.resumed(self._seat.roster.resume_step)
        self._total = Vote()
        self.last_timeline: tuple[int, Timeline] | None = None
        """Of the last full step."""
        self._samples = SamplePlan.of(assignment.job, len(assignment.data), assignment.plan.grain_size)
        self._schedules: dict[int, StepSchedule] = {}
        self._runner = StageRunner(assignment.job, assignment.data, assignment.stage, state, self._seat)
        name = self._seat.roster.members[self._seat.rank].name
        self._executor = Executor(name, {**self._runner.handlers, Kind.COMMIT: self._commit}, abort)

    def run(self) -> int:
        """Train to the end of the run; returns the number of steps that the state then contains."""
        while self._step.num_applied < self._samples.num_steps:
            self._run_step()
        return self._step.num_applied

    def _run_step(self) -> None:
        start_s = time.perf_counter()
        self._step = self._step.begin()
        step = self._step.step
        schedule = self._schedule(self._samples.num_grains(step))
        self._runner.begin(step, self._samples.grains(step))
        actions = schedule.lists[self._seat.replica][self._seat.stage]
        timeline = self._executor.run(actions, schedule.num_stages, schedule.grains[self._seat.replica])
        if self._samples.step_size(step) == self._samples.batch_size:
            self.last_timeline = (step, timeline)
        if self._seat.rank == 0:
            self._events.write(
                StepCommitted(
                    at_s=time.time(),
                    step=step,
                    epoch=self._samples.epoch_of(step),
                    loss=self._total.loss_sum / self._total.weight,
                    num_samples=self._samples.step_size(step),
                    step_s=time.perf_counter() - start_s,
                )
            )

    def _schedule(self, num_grains: int) -> StepSchedule:
        if num_grains not in self._schedules:
            schedule = schedule_for(self._assignment.plan.schedule, self._seat.roster, num_grains)
            check_schedule(schedule)
            self._schedules[num_grains] = schedule
        return self._schedules[num_grains]

    def _commit(self, action: Action) -> None:
        """Prepared → one small all-reduce of votes over the whole roster → apply, or drop everywhere."""
        self._step = self._step.prepare()
        votes = torch.tensor(self._runner.vote().values(), dtype=torch.float64)
        dist.all_reduce(votes)
        self._total = Vote.of(votes.tolist())
        if self._step.decide(self._total, len(self._seat.roster.members)) is Decision.DROP:
            self._state.drop()
            self._step = self._step.drop()
            raise TrainingError(
                f"step {self._step.step + 1} gave a loss or gradients that are not finite, or no weight (summed loss "
                f"{self._total.loss_sum:g}, weight {self._total.weight:g}); nothing of it was applied, and the last "
                "checkpoint is untouched: lower the learning rate or look at the data"
            )
        self._state.apply(self._assignment.job.batch_size / self._total.weight)
        self._step = self._step.apply()
