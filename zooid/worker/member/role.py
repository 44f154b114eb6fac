"""What a member finds out before it meets the others: the job, its data, the model's layers and the plan."""

from dataclasses import dataclass
from typing import Any

import torch
from msgspec import structs

from zooid.core.abort import Abort
from zooid.core.errors import CheckpointError
from zooid.core.jobs.job import Job, load_job
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record
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
from zooid.store.rosters import read_roster
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.job_changes import changes_since
from zooid.worker.member.plan_checks import check_plan
from zooid.worker.member.stored_trace import layers_of
from zooid.worker.member_imports import lasting_imports
from zooid.worker.state.light_optimizers import lighten_optimizers

_WEIGHTS_TIMEOUT_S = 3600.0
"""Whoever started this member ends it when the initial weights do not come; this is for one that is left alone."""


@dataclass(frozen=True)
class Role:
    """What stays the same under all rosters of a claim."""

    plan: Plan
    first_roster: Roster
    job: Job
    data: Any
    layered: LayeredModel
    manifest: CheckpointManifest
    """The checkpoint that the first roster starts from."""
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
            most_kept=max(self.plan.shares or even_shares(self.samples.num_grains(0), self.plan.num_replicas)),
        )


def manifest_of(store: ObjectStore, roster: Roster) -> CheckpointManifest:
    """The checkpoint that this roster starts from, with the settings that hold for the run now."""
    manifest = contents.read_manifest(store, roster.resume_step)
    if roster.optimizer_settings:
        manifest = structs.replace(manifest, optimizer_settings=roster.optimizer_settings)
    return manifest


def learn(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> Role:
    key = keys.plan(spec.roster)
    plan = decode_record(bytes(store.get(key)), Plan, f"{store.url}/{key}")
    roster = read_roster(store, spec.roster)
    with lasting_imports():
        job = load_job(spec.job_file)
    lighten_optimizers()
    data = check_data(job)
    layered = layers_of(store, spec.trace, job, data, why_whole=plan.why_whole)
    check_plan(plan, layered, job, len(data))
    if roster.resume_step == 0:  # initial weights may still be on their way
        wait_for(store, keys.checkpoint_manifest(0), timeout_s=_WEIGHTS_TIMEOUT_S, abort=abort)
    manifest = manifest_of(store, roster)
    facts = contents.sample_facts(job, data, plan.grain_size)
    if changes := changes_since(manifest, facts, data, layered.fingerprint):
        raise CheckpointError(f"the checkpoint of step {manifest.step} is of another run: {'; '.join(changes)}")
    device = default_device()
    if device.type == "cuda":
        device = torch.device("cuda", roster.rank_of(spec.member) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return Role(plan, roster, job, data, layered, manifest, device)
