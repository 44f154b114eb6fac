"""The two tasks of the worker program: `prepare` a run, and `train` in one seat of its roster."""

import datetime
import time

from msgspec import structs
from torch import distributed as dist

from zooid.comm import ObjectRendezvous, Options
from zooid.core import keys
from zooid.core.abort import Abort
from zooid.core.checkpoint import CheckpointManifest, Shard
from zooid.core.errors import PlanError
from zooid.core.events import CheckpointSaved, MemberStarted, MemberTrained
from zooid.core.job import Job, load_job
from zooid.core.machine import peak_resident_bytes
from zooid.core.plan import Plan
from zooid.core.records import decode_record, encode_record
from zooid.core.roster import Roster, RosterMember
from zooid.core.spec import WorkerSpec
from zooid.layers import LayeredModel, Stage, build_stage, check_data, check_job, collate, trace_job
from zooid.layers.checking import EXAMPLE_SIZE
from zooid.schedule.samples import SamplePlan
from zooid.schedule.ties import shared_between
from zooid.store import EventWriter, ObjectStore
from zooid.worker import checkpoint
from zooid.worker.checkpoint import Tensors
from zooid.worker.stage_runner import Seat
from zooid.worker.state import Tie, TrainingState
from zooid.worker.training import Assignment, Trainer


def prepare(spec: WorkerSpec, store: ObjectStore) -> None:
    """Check the job, and that the plan was made for it; write checkpoint 0, cut as the plan's stages are."""
    plan = _read_plan(store)
    checked = check_job(load_job(spec.job_file))
    layered = trace_job(checked.job, checked.example)
    _check_plan(plan, layered, checked.job, checked.num_samples)
    checkpoint.write_initial(store, checked.model, _stage_names(layered, plan), layered)


def train(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> None:
    """Take the seat that the roster gives this member, and train to the end of the run."""
    plan = _read_plan(store)
    roster = decode_record(bytes(store.get(keys.roster(spec.roster))), Roster, keys.roster(spec.roster))
    rank = roster.rank_of(spec.member)
    place = roster.members[rank]
    job = load_job(spec.job_file)
    data = check_data(job)
    layered = trace_job(job, collate(data, range(EXAMPLE_SIZE)))
    _check_plan(plan, layered, job, len(data))
    manifest = checkpoint.read_manifest(store, roster.resume_step)
    stage, unused = _load_stage(store, manifest, layered, plan, place.stage)
    rendezvous = ObjectRendezvous(
        store,
        keys.comm_of(spec.run, roster.number),
        timeout_s=spec.timeout_s,
        abort=abort,
        options=Options(all_reduce=plan.all_reduce),
    )
    dist.init_process_group(
        "zooid",
        store=rendezvous,
        rank=rank,
        world_size=len(roster.members),
        timeout=datetime.timedelta(seconds=spec.timeout_s),
    )
    seat = Seat(roster, rank, place.replica, place.stage, _stage_group(roster, place.stage))
    spans = [(stage.first_layer, stage.end_layer) for stage in plan.stages]
    ties = _ties(roster, place, shared_between(layered.tied, spans))
    state = TrainingState(stage.module, job, layered.persistent_names, ties)
    with EventWriter(store, spec.member) as events:
        parameter_bytes = sum(p.numel() * p.element_size() for p in stage.module.parameters())
        num_layers = stage.end_layer - stage.first_layer
        events.write(
            MemberStarted(at_s=time.time(), member=spec.member, num_layers=num_layers, parameter_bytes=parameter_bytes)
        )
        dist.barrier()
        trainer = Trainer(Assignment(job, data, plan, stage, seat), state, events, abort)
        step = trainer.run()
        events.write(MemberTrained(at_s=time.time(), member=spec.member, peak_bytes=peak_resident_bytes()))
        if trainer.last_timeline is not None:
            at, timeline = trainer.last_timeline
            store.put(keys.timeline(at, spec.member), encode_record(timeline))
        url = _save(store, manifest, _stage_names(layered, plan), seat, step, _state_dict(stage) | unused)
        if rank == 0:
            events.write(CheckpointSaved(at_s=time.time(), step=step, url=url))
    dist.destroy_process_group()


def _read_plan(store: ObjectStore) -> Plan:
    return decode_record(bytes(store.get(keys.PLAN)), Plan, f"{store.url}/{keys.PLAN}")


def _check_plan(plan: Plan, layered: LayeredModel, job: Job, num_samples: int) -> None:
    if plan.model_fingerprint != layered.fingerprint:
        raise PlanError(
            "the plan was made for another model (its fingerprint differs): the job file has changed since; "
            "run `zooid plan` again"
        )
    steps = SamplePlan.of(job, num_samples, plan.grain_size).num_steps
    for what, planned, given in (
        ("a batch size", plan.batch_size, job.batch_size),
        ("a grain size", plan.grain_size, job.grain_size or plan.grain_size),
        ("a number of steps", plan.prediction.num_steps, steps),
    ):
        if planned != given:
            raise PlanError(
                f"the plan was made for {what} of {planned}, but the job has {given}; run `zooid plan` again"
            )
    assert plan.stages[-1].end_layer == layered.num_layers, "equal fingerprints imply equal layers"


def _stage_names(layered: LayeredModel, plan: Plan) -> list[list[str]]:
    """Names of the state dict by the stage that keeps them: the first that uses them; what none uses, the first."""
    names: list[list[str]] = []
    kept: set[str] = set()
    for stage in plan.stages:
        used = [name for name in layered.state_of(stage.first_layer, stage.end_layer) if name not in kept]
        names.append([name for name in used if name in layered.persistent_names])
        kept.update(used)
    return [[*names[0], *sorted(layered.unused_names)], *names[1:]]


def _load_stage(
    store: ObjectStore, manifest: CheckpointManifest, layered: LayeredModel, plan: Plan, number: int
) -> tuple[Stage, Tensors]:
    """The member's own stage with its weights, and what it keeps for the checkpoint without using it."""
    if manifest.model_fingerprint != layered.fingerprint:
        raise PlanError("the checkpoint is of another model (its fingerprint differs)")
    planned = plan.stages[number]
    names = layered.state_of(planned.first_layer, planned.end_layer)
    unused = layered.unused_names if number == 0 else frozenset()
    tensors = checkpoint.read_tensors(store, manifest, {*names, *unused})
    stage = build_stage(layered, planned.first_layer, planned.end_layer, tensors, "cpu")
    return stage, {name: tensors[name] for name in unused}


def _stage_group(roster: Roster, own_stage: int) -> dist.ProcessGroup | None:
    """Groups are made by everyone in the same order; a single replica needs none."""
    if roster.num_replicas == 1:
        return None
    groups: list[dist.ProcessGroup] = [
        dist.new_group(roster.ranks_of_stage(stage)) for stage in range(roster.num_stages)
    ]
    return groups[own_stage]


def _ties(roster: Roster, place: RosterMember, tied: dict[tuple[int, ...], tuple[str, ...]]) -> list[Tie]:
    """The ties of this member; their groups, too, are made by everyone in the same order."""
    ties = []
    for stages, names in tied.items():
        for replica in range(roster.num_replicas):
            group = dist.new_group([roster.rank_at(replica, stage) for stage in stages])
            if replica == place.replica and place.stage in stages:
                ties.append(Tie(names, group, counts_here=place.stage == stages[0]))
    return ties


def _state_dict(stage: Stage) -> Tensors:
    persistent = stage.model.persistent_names
    return {name: tensor for name, tensor in stage.module.state_dict().items() if name in persistent}


def _save(
    store: ObjectStore,
    before: CheckpointManifest,
    stage_names: list[list[str]],
    seat: Seat,
    step: int,
    tensors: Tensors,
) -> str:
    """The first replica writes its stages; when all are written, the first member makes them count."""
    num_stages = len(stage_names)
    if seat.replica == 0:
        own = {name: tensors[name] for name in stage_names[seat.stage]}
        checkpoint.write_shard(store, step, seat.stage, num_stages, own)
    dist.barrier()
    if seat.rank == 0:
        shards = tuple(
            Shard(key=checkpoint.shard_key(step, stage, num_stages), names=tuple(sorted(names)))
            for stage, names in enumerate(stage_names)
        )
        checkpoint.write_manifest(store, structs.replace(before, step=step, shards=shards))
    return f"{store.url}/{keys.checkpoint(step)}"
