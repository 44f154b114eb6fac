"""A member without a job: it takes its seat, votes and follows rosters as others do, and sleeps when they compute."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from zooid.core.abort import Abort
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, Division
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import RehearsalSpec
from zooid.core.runs.timeline import Timeline
from zooid.layers import Stage
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import SamplePlan, even_shares
from zooid.schedule.step_state import StepState
from zooid.store import EventWriter, ObjectStore
from zooid.store.rosters import read_roster
from zooid.store.stored_records import read_plan
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.member.evaluation_history import EvaluationHistory
from zooid.worker.member.role import Role, manifest_of
from zooid.worker.member.seat import Seat
from zooid.worker.member.train_task import Member
from zooid.worker.member.training_loop import Trainer
from zooid.worker.rehearsed.sleeping_runner import SleepingRunner
from zooid.worker.rehearsed.zero_gradients import ZeroGradients
from zooid.worker.samples.sample_supply import SampleSupply
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.stage_state import StageState
from zooid.worker.step.member_progress import MemberProgress


@dataclass(frozen=True)
class RehearsedRole:
    """The parts of a `Role` that do not depend on a model."""

    plan: Plan
    first_roster: Roster
    job: Job
    manifest: CheckpointManifest
    samples: SamplePlan
    shape: StepShape
    ties: dict[tuple[int, ...], tuple[str, ...]]
    """Stages that share parameters. The parameters have no names."""
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # it cannot be changed


def rehearsed_role(spec: RehearsalSpec, store: ObjectStore) -> RehearsedRole:
    """Read plan and roster, and make up a job of as many steps as the spec has."""
    plan, roster = read_plan(store, spec.roster), read_roster(store, spec.roster)
    job = Job(model=_nothing, loss=None, data=_nothing, optimizer=_nothing, batch_size=plan.batch_size, epochs=1)
    num_samples = plan.batch_size * spec.num_steps
    samples = SamplePlan.of(job, num_samples, plan.grain_size, is_in_order=True)
    shape = StepShape(
        plan.schedule,
        len(spec.pace),
        plan.ahead,
        tuple(len(stage.buckets) for stage in spec.pace),
        tuple(tie.stages for tie in spec.ties),
        most_kept=max(plan.shares or even_shares(samples.num_grains(0), plan.num_replicas)),
    )
    ties: dict[tuple[int, ...], tuple[str, ...]] = {tie.stages: () for tie in spec.ties}
    return RehearsedRole(plan, roster, job, manifest_of(store, roster), samples, shape, ties)


def _nothing(*_: object) -> Any:
    raise AssertionError("a rehearsal without a job builds nothing of it")


@dataclass
class _NoLayers:
    """As much of a `Stage` as a member without a model is asked for."""

    first_layer: int
    end_layer: int
    is_last: bool
    module: nn.Module = field(default_factory=nn.Module)
    persistent_names: frozenset[str] = frozenset()

    @property
    def model(self) -> "_NoLayers":
        return self


class RecordingTrainer(Trainer):
    """A trainer that keeps the timeline of every step."""

    timelines: dict[int, Timeline]

    def run(self) -> int:
        self.timelines = {}
        return super().run()

    def run_step(self) -> None:
        super().run_step()
        if (last := self.last_timeline) is not None:
            self.timelines[last[0]] = last[1]


class RehearsedMember(Member):
    """A member whose stage sleeps. Its checkpoints are complete, but have no tensors."""

    trainer_kind = RecordingTrainer

    def __init__(self, spec: RehearsalSpec, store: ObjectStore, abort: Abort, events: EventWriter) -> None:
        self._ties_of_plan = spec.ties
        self._timelines: dict[int, Timeline] = {}
        # what a role knows of a model is used only where the methods below replace those of a trained member
        super().__init__(spec, store, abort, events, cast(Role, rehearsed_role(spec, store)))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            for step, timeline in self._timelines.items():
                self._store.put(keys.timeline(step, self._spec.member), encode_record(timeline))
        super().__exit__(kind, *error)

    @contextmanager
    def under(self, roster: Roster) -> Iterator[tuple[Trainer, CheckpointKeeper]]:
        with super().under(roster) as (trainer, keeper):
            assert isinstance(trainer, RecordingTrainer)
            try:
                yield trainer, keeper
            finally:
                self._timelines |= trainer.timelines

    def _load_state(self, manifest: CheckpointManifest, stage: int) -> StageState:
        planned = self.role.plan.stages[stage]
        is_last = stage == len(self.role.plan.stages) - 1
        return StageState(
            stage=cast(Stage, _NoLayers(planned.first_layer, planned.end_layer, is_last)),
            untrained={},
            manifest=manifest,
            training=ZeroGradients(self._spec.pace[stage], self._ties_of_plan),
            history=EvaluationHistory(self.role.job, manifest.ledger),
            progress=MemberProgress(StepState.resumed(manifest.step), LossScale()),
            saved=(manifest.step, time.monotonic()),
        )

    def _open_supply(self) -> SampleSupply:
        return SampleSupply(_nothing, _nothing, None)

    def _new_runner(self, seat: Seat) -> SleepingRunner:
        assert isinstance(self._state.training, ZeroGradients)
        assert self._pacer is not None
        return SleepingRunner(self._state.training, seat, self._pacer)

    def _divide(self, roster: Roster) -> Division:
        no_tensors: tuple[dict[str, int], ...] = tuple({} for _ in self.role.plan.stages)
        return Division(no_tensors, frozenset(), roster.num_replicas, roster.number, roster.change)
