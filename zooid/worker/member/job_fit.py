"""Checks that a job fits its plan, and that it is still the job of a checkpoint."""

from typing import Any

from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Plan
from zooid.core.runs.checkpoint import CheckpointManifest, SampleFacts
from zooid.layers import LayeredModel
from zooid.schedule.samples import SamplePlan
from zooid.worker.checkpoints.contents import digest_of_shards

_WORDS = {
    "num_samples": "number of samples",
    "batch_size": "batch size",
    "grain_size": "grain size",
    "epochs": "number of epochs",
    "seed": "seed",
    "is_in_order": "data set being read in order",
}


def check_plan(plan: Plan, layered: LayeredModel, job: Job, num_samples: int) -> None:
    """Reject a plan of another model, batch size, grain size or number of steps."""
    if plan.model_fingerprint != layered.fingerprint:
        raise PlanError(
            "the plan was made for another model (its fingerprint differs): the job file has changed since; "
            "run `zooid plan` again"
        )
    num_steps = SamplePlan.of(job, num_samples, plan.grain_size).num_steps
    for what, planned, actual in (
        ("a batch size", plan.batch_size, job.batch_size),
        ("a grain size", plan.grain_size, job.grain_size or plan.grain_size),
        ("a number of steps", plan.num_steps, num_steps),
    ):
        if planned != actual:
            raise PlanError(
                f"the plan was made for {what} of {planned}, but the job has {actual}; run `zooid plan` again"
            )
    assert plan.stages[-1].end_layer == layered.num_layers, "equal fingerprints imply equal layers"


def changes_since(manifest: CheckpointManifest, now: SampleFacts, data: Any, fingerprint: str) -> list[str]:
    """The changes of a job since a checkpoint that would make its run another one, in words."""
    changes = [
        f"its {_WORDS[field]} was {before}, and is {getattr(now, field)}"
        for field, before in structs.asdict(manifest.samples).items()
        if before != getattr(now, field)
    ]
    if digest_of_shards(data) != manifest.data_shards:
        changes.append("its data set is divided into other shards, which changes the order of samples")
    if fingerprint != manifest.model_fingerprint:
        changes.append("its model is another one (the fingerprint of its operations and parameters differs)")
    return changes
