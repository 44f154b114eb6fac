"""What is refused of a plan that somebody else made, before anything is started."""

from zooid.coordinator.plans.offer_names import LOCAL
from zooid.core.errors import InputError, PlanError
from zooid.core.plans.plan import FixedLayout, Limits, Plan
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.core.units import format_bytes


def check_given(plan: Plan, limits: Limits | None, goal: Goal | None, on: str | None) -> None:
    """A plan that is given is run as it is, on what this process can start."""
    if limits is not None or goal is not None or on is not None:
        raise InputError(
            "a plan holds its layout and its offers; give limits, a goal and `on` when planning, not with it"
        )
    for offer in plan.offers:
        if offer.platform != LOCAL:
            raise InputError(
                f"the plan stands on {offer.name}, but members can be started on {LOCAL} only; plan for that"
            )
    check_memory(plan)


def check_reproducible(plan: Plan, *, wanted: bool) -> None:
    """Refuse a plan that was made without the option: its time and its memory are predicted for other sums."""
    if wanted and not plan.reproducible:
        raise InputError(
            "`reproducible` is asked for, but the plan was made without it; make it with `zooid plan --reproducible` "
            "(in Python, zooid.Limits(reproducible=True))"
        )


def fixed_layout(
    plan: Plan | None, limits: Limits | None, goal: Goal | None, links: Links | None, offer: Offer
) -> FixedLayout:
    """What a job is trained in that is not profiled; refuses wishes that only a profile could meet."""
    if plan is not None:
        raise InputError("a plan is given, and `profile` is False; a plan needs no profile: leave one of them out")
    if limits is None or limits.num_replicas is None or limits.num_stages is None:
        raise InputError(
            "a job that is not profiled needs a layout; give the number of replicas and of stages, for example "
            "--layout 1x1 (in Python, zooid.Limits(num_replicas=1, num_stages=1))"
        )
    for what, value in (
        ("a deadline", limits.deadline_s),
        ("a budget", limits.budget_usd),
        ("a goal", goal),
        ("links", links),
    ):
        if value is not None:
            raise InputError(
                f"{what} cannot be kept to where the job is not profiled, since nothing is known about time and money; "
                "leave it out, or let the job be profiled"
            )
    return FixedLayout(
        num_replicas=limits.num_replicas,
        num_stages=limits.num_stages,
        schedule=limits.schedule or "1f1b",
        transport=limits.transport or "store",
        reproducible=limits.reproducible,
        insured=limits.insured,
        offer=offer,
    )


def check_memory(plan: Plan) -> None:
    """Every stage has to fit into its offer's memory, and members of one machine into what they share."""
    for number, stage in enumerate(plan.stages):
        offer = min((plan.offer_of(number, r) for r in range(plan.num_replicas)), key=lambda each: each.memory_bytes)
        missing = stage.memory_bytes - offer.memory_bytes
        if missing > 0:
            raise PlanError(
                f"stage {number} of the plan (layers {stage.first_layer} to {stage.end_layer - 1}) needs "
                f"{format_bytes(stage.memory_bytes)}, but {offer.name} has {format_bytes(offer.memory_bytes)}: "
                f"{format_bytes(missing)} are missing; plan with more stages, a smaller job.grain_size or a larger "
                "offer"
            )
    shared = plan.offers[0]
    together = plan.num_holders * sum(stage.memory_bytes for stage in plan.stages)
    if shared.site == LOCAL and together > shared.memory_bytes:
        raise PlanError(
            f"the plan's {plan.num_members} members need {format_bytes(together)} together, but this machine has "
            f"{format_bytes(shared.memory_bytes)}: {format_bytes(together - shared.memory_bytes)} are missing; plan "
            "with fewer replicas or a smaller job.grain_size"
        )


def check_continues(plan: Plan, manifest: CheckpointManifest, url: str) -> None:
    """A run can change its layout, but not what its steps are: model, batch and grain stay."""
    if plan.model_fingerprint != manifest.model_fingerprint:
        raise PlanError(
            f"the plan was made for another model than that of the run in {url} (its fingerprint differs); plan for "
            "the run's own job"
        )
    samples = manifest.samples
    for what, planned, kept in (
        ("batch size", plan.batch_size, samples.batch_size),
        ("grain size", plan.grain_size, samples.grain_size),
    ):
        if planned != kept:
            raise PlanError(
                f"the plan has a {what} of {planned}, but the run in {url} has {kept}, which is fixed for a run; plan "
                f"with {kept}, or let `zooid resume` plan: give --layout instead of --plan"
            )
