"""Whether a plan was made for the job that is to be trained."""

from zooid.core.errors import PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Plan
from zooid.layers import LayeredModel
from zooid.schedule.samples import SamplePlan


def check_plan(plan: Plan, layered: LayeredModel, job: Job, num_samples: int) -> None:
    """Refuse a plan of another model, batch size, grain size or number of steps."""
    if plan.model_fingerprint != layered.fingerprint:
        raise PlanError(
            "the plan was made for another model (its fingerprint differs): the job file has changed since; "
            "run `zooid plan` again"
        )
    steps = SamplePlan.of(job, num_samples, plan.grain_size).num_steps
    for what, planned, given in (
        ("a batch size", plan.batch_size, job.batch_size),
        ("a grain size", plan.grain_size, job.grain_size or plan.grain_size),
        ("a number of steps", plan.num_steps, steps),
    ):
        if planned != given:
            raise PlanError(
                f"the plan was made for {what} of {planned}, but the job has {given}; run `zooid plan` again"
            )
    assert plan.stages[-1].end_layer == layered.num_layers, "equal fingerprints imply equal layers"
