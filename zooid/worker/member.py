"""The task `train` of the worker program: take one seat of a run's roster, and train there."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from msgspec import structs
from torch import distributed as dist

from zooid.core import keys
from zooid.core.abort import Abort
from zooid.core.checkpoint import CheckpointManifest
from zooid.core.errors import CheckpointError
from zooid.core.events import Evaluated, MemberStarted, MemberTrained
from zooid.core.job import Job, load_job
from zooid.core.machine import peak_resident_bytes
from zooid.core.plan import Plan
from zooid.core.records import decode_record, encode_record
from zooid.core.roster import Roster
from zooid.core.spec import WorkerSpec
from zooid.layers import LayeredModel, Objective, Stage, build_stage, check_data, default_device, is_in_order
from zooid.schedule.buckets import cut_buckets, reduces_early
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import SamplePlan
from zooid.schedule.ties import shared_between
from zooid.store import EventWriter, Fence, ObjectStore, wait_for
from zooid.store.program import EXIT_FAILED, end_process
from zooid.worker.callbacks import Callbacks
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.changes import changes_since
from zooid.worker.checkpoints.contents import Tensors
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors
from zooid.worker.evaluation import Evaluator
from zooid.worker.gradients import Reducing
from zooid.worker.imports import lasting_imports
from zooid.worker.light_optimizers import lighten_optimizers
from zooid.worker.plan_checks import check_plan
from zooid.worker.precision import LossScale
from zooid.worker.prints import shown_prints
from zooid.worker.seat import Seat, take_seat
from zooid.worker.stage_runner import StageRunner
from zooid.worker.standing import Standing
from zooid.worker.state import Tie, Trainee, TrainingState
from zooid.worker.supply import Supply, supply
from zooid.worker.traces import layers_of
from zooid.worker.training import Trainer
from zooid.worker.transactions import Assignment, Transactions

_WEIGHTS_TIMEOUT_S = 3600.0
"""Whoever started this member ends it when the initial weights do not come; this is for one that is left alone."""


@dataclass(frozen=True)
class _Role:
    """What a member finds out before it meets the others."""

    plan: Plan
    roster: Roster
    job: Job
    data: Any
    layered: LayeredModel
    manifest: CheckpointManifest
    device: torch.device

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(stage.first_layer, stage.end_layer) for stage in self.plan.stages]

    @property
    def objective(self) -> Objective:
        return Objective(self.job, self.manifest.loss_form)

    @property
    def ties(self) -> dict[tuple[int, ...], tuple[str, ...]]:
        return shared_between(self.layered.tied, self.spans)

    @property
    def samples(self) -> SamplePlan:
        sizes = getattr(self.data, "shard_sizes", ())
        is_ordered = is_in_order(self.data)
        return SamplePlan.of(self.job, len(self.data), self.plan.grain_size, sizes, is_in_order=is_ordered)

    @property
    def shape(self) -> StepShape:
        sizes = [self.layered.trained_bytes(*span) for span in self.spans]
        return StepShape(
            self.plan.schedule,
            len(self.spans),
            self.plan.ahead,
            tuple(len(cut_buckets(list(own.values()), is_direct=self.plan.is_direct)) for own in sizes),
            tuple(self.ties),
        )


def train(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> None:
    """Take the seat that the roster gives this member, and train to the end of the run."""
    with at_work(spec, store, abort) as (trainer, keeper, events):
        num_steps = trainer.run()
        abort.check()
        if (last := trainer.last_timeline) is not None:
            at, timeline = last
            store.put(keys.timeline(at, spec.member), encode_record(timeline))
        keeper.finish(num_steps, trainer.scale, trainer.ledger)
        events.write(MemberTrained(at_s=time.time(), member=spec.member, peak_bytes=peak_resident_bytes()))


@contextmanager
def at_work(
    spec: WorkerSpec, store: ObjectStore, abort: Abort
) -> Iterator[tuple[Trainer, CheckpointKeeper, EventWriter]]:
    """Everything that a member needs to run steps, from when all members are there."""
    with ExitStack() as work:
        fence = Fence(store, spec.roster)
        work.enter_context(fence.watched(abort, lambda: end_process(EXIT_FAILED)))
        events = work.enter_context(EventWriter(store, spec.member, spec.roster, fence))
        work.enter_context(shown_prints(spec.member, events.write))
        role = _learn(spec, store, abort)
        place = role.roster.members[role.roster.rank_of(spec.member)]
        stage, kept = _load_stage(store, role, place.stage)
        reads = stage.first_layer == 0 or stage.is_last
        is_gpu = role.device.type == "cuda"
        reading = work.enter_context(
            supply(role.job, role.data, role.samples, role.roster.shares, place.replica, reads=reads, pin=is_gpu)
        )
        seat = take_seat(spec, store, role.plan, role.roster, list(role.ties), role.device, abort)
        state = _state_of(role, seat, stage)
        standing = Standing(role.job, role.manifest.ledger)
        scale = _restore(store, role, state, standing.values)

        def model_tensors() -> Tensors:
            return _state_dict(stage) | kept

        keeper = CheckpointKeeper(
            store,
            spec.checkpoints,
            contents.division_of(role.layered, role.plan, role.roster.number),
            role.manifest,
            seat,
            state,
            model_tensors,
            events,
            abort,
        )
        callbacks = Callbacks(role.job, events.write, model_tensors, is_first=seat.rank == 0)
        assignment = Assignment(role.job, role.samples, role.shape, seat, role.device)
        runner = StageRunner(role.objective, reading.train, stage, state, seat, role.device)
        transactions = Transactions(
            assignment, runner, state, keeper, callbacks.tell, callbacks.show_weights, abort, scale
        )
        evaluate = _evaluation(role, seat, stage, kept, reading, abort)
        trainer = Trainer(assignment, transactions, state, keeper, callbacks, standing, evaluate)
        events.write(
            MemberStarted(
                at_s=time.time(),
                member=spec.member,
                num_layers=stage.end_layer - stage.first_layer,
                parameter_bytes=sum(p.numel() * p.element_size() for p in stage.module.parameters()),
                cpu_s=time.process_time(),
            )
        )
        seat.meet()  # nobody's clock starts before all are here
        yield trainer, keeper, events
    dist.destroy_process_group()


def _state_of(role: _Role, seat: Seat, stage: Stage) -> TrainingState:
    completed = tuple(role.layered.trained_bytes(stage.first_layer, stage.end_layer))
    return TrainingState(
        Trainee(stage.module, completed, role.layered.persistent_names, role.layered.hooks),
        role.job,
        {number: _tie(role, seat, number) for number in seat.tie_groups},
        Reducing(seat.stage_group, role.plan.is_direct, reduces_early(seat.stage)),
    )


def _learn(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> _Role:
    plan = _read_plan(store, spec.roster)
    key = keys.roster(spec.roster)
    roster = decode_record(bytes(store.get(key)), Roster, key)
    with lasting_imports():
        job = load_job(spec.job_file)
    lighten_optimizers()
    data = check_data(job)
    layered = layers_of(store, spec.trace, job, data, why_whole=plan.why_whole)
    check_plan(plan, layered, job, len(data))
    if roster.resume_step == 0:  # initial weights may still be on their way
        wait_for(store, keys.checkpoint_manifest(0), timeout_s=_WEIGHTS_TIMEOUT_S, abort=abort)
    manifest = contents.read_manifest(store, roster.resume_step)
    facts = contents.sample_facts(job, data, plan.grain_size)
    if changes := changes_since(manifest, facts, data, layered.fingerprint):
        raise CheckpointError(f"the checkpoint of step {manifest.step} is of another run: {'; '.join(changes)}")
    if roster.optimizer_settings:
        manifest = structs.replace(manifest, optimizer_settings=roster.optimizer_settings)
    device = default_device()
    if device.type == "cuda":
        device = torch.device("cuda", roster.rank_of(spec.member) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return _Role(plan, roster, job, data, layered, manifest, device)


def _read_plan(store: ObjectStore, roster: int) -> Plan:
    return decode_record(bytes(store.get(keys.plan(roster))), Plan, f"{store.url}/{keys.plan(roster)}")


def _load_stage(store: ObjectStore, role: _Role, number: int) -> tuple[Stage, Tensors]:
    """The member's own stage with its weights, and what it keeps without training on it: for the checkpoint, or because
    the model uses it in evaluation only."""
    first, end = role.spans[number]
    names = role.layered.state_of(first, end)
    unused = role.layered.unused_names if number == 0 else frozenset()
    tensors = contents.read_tensors(store, role.manifest, {*names, *unused})
    placed = {name: tensors[name].to(role.device) for name in names}
    stage = build_stage(role.layered, first, end, placed, role.device)
    trained_on = {name for name, _ in (*stage.module.named_parameters(), *stage.module.named_buffers())}
    kept = {name: tensor for name, tensor in placed.items() if name not in trained_on}
    return stage, kept | {name: tensors[name] for name in unused}


def _restore(store: ObjectStore, role: _Role, state: TrainingState, evaluated: Sequence[float]) -> LossScale:
    """Bring optimizer, learning rate and loss scale to where the checkpoint left them."""
    if state.optimizer is not None:
        named = state.named_parameters
        tensors = contents.read_optimizer_tensors(store, role.manifest, [name for name, _ in named])
        load_optimizer_tensors(state.optimizer, named, tensors)
    state.resume(role.manifest.step, evaluated)
    if role.manifest.step == 0 or role.manifest.loss_scale == 1.0:  # nothing was scaled before
        return LossScale.for_job(role.job.autocast)
    return LossScale(role.manifest.loss_scale, role.manifest.num_good_steps)


def _evaluation(
    role: _Role, seat: Seat, stage: Stage, kept: Tensors, reading: Supply, abort: Abort
) -> Callable[[int, int], Evaluated] | None:
    """(epoch, steps so far) -> what the evaluation data give; on the very parameters and buffers that are trained."""
    if reading.evaluation_sizes is None:
        return None
    tensors = {**kept, **dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
    evaluated = build_stage(role.layered, stage.first_layer, stage.end_layer, tensors, role.device, "eval")
    evaluator = Evaluator(role.objective, evaluated, seat, reading.evaluate, reading.evaluation_sizes, role.device)
    return lambda epoch, step: evaluator.run(role.shape, abort, epoch, step)


def _tie(role: _Role, seat: Seat, number: int) -> Tie:
    stages, names = list(role.ties.items())[number]
    return Tie(names, seat.tie_groups[number], counts_here=seat.stage == stages[0])


def _state_dict(stage: Stage) -> Tensors:
    persistent = stage.model.persistent_names
    return {name: tensor for name, tensor in stage.module.state_dict().items() if name in persistent}
