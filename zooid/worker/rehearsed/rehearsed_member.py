"""A member without a job: it takes its seat, votes and follows rosters as others do, and sleeps when they compute."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from zooid.core.abort import Abort
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, Division
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import RehearsalSpec, WorkerSpec
from zooid.layers import Stage
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import SamplePlan, even_shares
from zooid.schedule.step_state import StepState
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import last_step
from zooid.store.planned_changes import read_plan_of
from zooid.store.rosters import last_roster, read_roster
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.member.evaluation_history import EvaluationHistory
from zooid.worker.member.role import Role, manifest_of
from zooid.worker.member.seat import Seat
from zooid.worker.member.step_log import StepLog
from zooid.worker.member.training_loop import Trainer
from zooid.worker.member.training_member import Member
from zooid.worker.rehearsed.sleeping_runner import SleepingRunner
from zooid.worker.rehearsed.zero_gradients import ZeroGradients
from zooid.worker.rehearsed.zero_layers import ZeroLayers, zero_stage
from zooid.worker.samples.sample_supply import SampleSupply
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.stage_state import Loaded, Received, StageState
from zooid.worker.step.executor import Recording
from zooid.worker.step.member_progress import MemberProgress


@dataclass(frozen=True)
class RehearsedRole:
    """The parts of a `Role` that do not depend on a model."""

    plan: Plan
    job: Job
    layered: ZeroLayers
    manifest: CheckpointManifest
    samples: SamplePlan
    shape: StepShape
    ties: dict[tuple[int, ...], tuple[str, ...]]
    """Stages that share parameters. The parameters have no names."""
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # it cannot be changed

    @property
    def spans(self) -> list[tuple[int, int]]:
        return list(self.plan.partition)


def rehearsed_role(spec: RehearsalSpec, store: ObjectStore) -> tuple[RehearsedRole, Roster]:
    """Read plan and roster, and make up a job of as many steps as the spec has."""
    plan, roster = read_plan_of(store, spec.roster, spec.plan), read_roster(store, spec.roster)
    if spec.joins_stage is not None:
        roster = last_roster(store, spec.roster) or roster
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
    manifest = manifest_of(store, roster, roster.resume_step if spec.joins_stage is None else last_step(store))
    return RehearsedRole(plan, job, ZeroLayers(spec.pace), manifest, samples, shape, ties), roster


def _nothing(*_: object) -> Any:
    raise AssertionError("a rehearsal without a job builds nothing of it")


class RecordingTrainer(Trainer):
    """A trainer that keeps the recording of every step."""

    recordings: dict[int, Recording]

    def run(self) -> Roster | None:
        self.recordings = {}
        return super().run()

    def run_step(self) -> None:
        super().run_step()
        if (last := self._transactions.last_full) is not None:
            self.recordings[last[0]] = last[1]


class RehearsedMember(Member):
    """A member whose stage sleeps. Its checkpoints are complete, but have no tensors."""

    trainer_kind = RecordingTrainer

    _recordings: dict[int, Recording]

    @staticmethod
    def learn_role(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> tuple[Role, Roster]:
        assert isinstance(spec, RehearsalSpec)
        role, roster = rehearsed_role(spec, store)
        # what a role knows of a model is used only where the methods below replace those of a trained member
        return cast(Role, role), roster

    @staticmethod
    def load_stage(spec: WorkerSpec, store: ObjectStore, role: Role) -> Loaded:
        assert spec.joins_stage is not None
        return _stage_of(role, spec.joins_stage), {}

    def warm_up(self) -> None:
        """Do nothing: zeros need no first run."""

    def __enter__(self) -> "RehearsedMember":
        self._recordings = {}
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            for step, recording in self._recordings.items():
                self._store.put(keys.timeline(step, self._spec.member), encode_record(recording.timeline()))
        super().__exit__(kind, *error)

    @contextmanager
    def under(self, roster: Roster) -> Iterator[tuple[Trainer, CheckpointKeeper]]:
        with super().under(roster) as (trainer, keeper):
            assert isinstance(trainer, RecordingTrainer)
            try:
                yield trainer, keeper
            finally:
                self._recordings |= trainer.recordings

    def _load_state(self, manifest: CheckpointManifest, stage: int) -> StageState:
        return self._state_of(_stage_of(self.role, stage), stage, manifest, manifest.step, replace(self.role.samples))

    def _received_state(self, loaded: Loaded, received: Received) -> StageState:
        assert self._spec.joins_stage is not None
        step = received[0][0].step
        return self._state_of(loaded[0], self._spec.joins_stage, self.role.manifest, step, self._samples)

    def _state_of(
        self, stage: Stage, number: int, manifest: CheckpointManifest, step: int, samples: SamplePlan
    ) -> StageState:
        """The state after so many steps of a stage that began with this checkpoint."""
        assert isinstance(self._spec, RehearsalSpec)
        return StageState(
            stage=stage,
            untrained={},
            manifest=manifest,
            training=ZeroGradients(self._spec.pace[number], self._spec.ties),
            history=EvaluationHistory(self.role.job, manifest.ledger),
            progress=MemberProgress(StepState.resumed(step), LossScale()),
            saved=(manifest.step, time.monotonic()),
            samples=samples,
            log=StepLog(),
        )

    def _open_supply(self, stage: Stage) -> SampleSupply:
        return SampleSupply(_nothing, _nothing, None)

    def _new_runner(self, seat: Seat) -> SleepingRunner:
        assert isinstance(self._state.training, ZeroGradients)
        assert self._pacer is not None
        return SleepingRunner(self._state.training, seat, self._pacer)

    def _divide(self, roster: Roster) -> Division:
        no_tensors: tuple[dict[str, int], ...] = tuple({} for _ in self.role.plan.stages)
        return Division(no_tensors, frozenset(), roster.num_replicas, roster.number, roster.change)


def _stage_of(role: Role, number: int) -> Stage:
    return cast(Stage, zero_stage(cast(ZeroLayers, role.layered), role.spans, number))
