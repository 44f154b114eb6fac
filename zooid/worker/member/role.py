"""The role of a member, which it learns before it connects to others: job, data, layers of the model, and plan."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from msgspec import structs

from zooid.core.abort import Abort
from zooid.core.environment import needs_gpu
from zooid.core.errors import CheckpointError, InputError
from zooid.core.jobs.job import Job, load_job
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import LayeredModel, Objective, check_data, default_device, is_in_order
from zooid.schedule.buckets import cut_buckets
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import SamplePlan, even_shares
from zooid.schedule.tied_parameters import shared_between
from zooid.store import ObjectStore, wait_for
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.planned_changes import read_plan_of
from zooid.store.rosters import last_roster, read_roster
from zooid.worker.checkpoints import contents
from zooid.worker.member.job_fit import changes_since, check_plan
from zooid.worker.member.stored_trace import layers_of
from zooid.worker.member_imports import lasting_imports
from zooid.worker.state.light_optimizers import lighten_optimizers

_WEIGHTS_TIMEOUT_S = 3600.0
"""Timeout for the initial weights. Usually the starter of a member ends it earlier; this is for an orphan."""


@dataclass(frozen=True)
class Role:
    """Everything that stays the same under all rosters of a claim."""

    plan: Plan
    job: Job
    data: Any
    layered: LayeredModel
    manifest: CheckpointManifest
    """The checkpoint that the member starts from."""
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
        """The shape of a step, whatever the number of replicas."""
        sizes = [self.layered.trained_bytes(*span) for span in self.spans]
        return StepShape(
            self.plan.schedule,
            len(self.spans),
            self.plan.ahead,
            tuple(len(cut_buckets(list(stage.values()), is_direct=self.plan.is_direct)) for stage in sizes),
            tuple(self.ties),
            most_kept=max(self.plan.shares or even_shares(self.samples.num_grains(0), self.plan.num_replicas)),
        )


def manifest_of(store: ObjectStore, roster: Roster, step: int) -> CheckpointManifest:
    """The checkpoint of a step, with the present settings of the optimizer."""
    manifest = read_manifest(store, step)
    if roster.optimizer_settings:
        manifest = structs.replace(manifest, optimizer_settings=roster.optimizer_settings)
    return manifest


def learn_role(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> tuple[Role, Roster]:
    """Read the role of a member from its spec and the store, and check that job, plan and checkpoint fit.

    Also returns the roster under which the member begins. A process that joins has no seat there yet.
    """
    plan = read_plan_of(store, spec.roster, spec.plan)
    roster = read_roster(store, spec.roster)
    if spec.joins_stage is not None:
        roster = last_roster(store, spec.roster) or roster
    with lasting_imports():
        job = load_job(spec.job_file)
    lighten_optimizers()
    data = check_data(job)
    layered = layers_of(store, spec.trace, job, data, why_whole=plan.why_whole)
    check_plan(plan, layered, job, len(data))
    if roster.resume_step == 0 and spec.joins_stage is None:  # another member may still be writing the initial weights
        wait_for(store, keys.checkpoint_manifest(0), timeout_s=_WEIGHTS_TIMEOUT_S, abort=abort)
    step = roster.resume_step if spec.joins_stage is None else last_step(store)
    manifest = manifest_of(store, roster, step)
    facts = contents.sample_facts(job, data, plan.grain_size)
    if changes := changes_since(manifest, facts, data, layered.fingerprint):
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} is of another run than the job: {'; '.join(changes)}. "
            "Put that back, or train in another folder"
        )
    return Role(plan, job, data, layered, manifest, _device_of(spec, roster)), roster


def _device_of(spec: WorkerSpec, roster: Roster) -> torch.device:
    """Choose the device of a member. It sees one GPU alone, unless it was started by hand."""
    device = default_device()
    if device.type == "cuda":
        rank = roster.rank_of(spec.member) if spec.joins_stage is None else spec.joins_stage
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    elif needs_gpu():
        raise InputError(
            f"torch {torch.__version__} cannot use the GPU of {os.uname().nodename}; install a torch with CUDA there, "
            "and a driver that is new enough for it, or set `num_gpus = 0` in the file of machines"
        )
    return device
