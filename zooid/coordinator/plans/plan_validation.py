"""Checks of a given plan or layout, before anything is started."""

from collections.abc import Sequence

from zooid.coordinator.plans.offer_names import LOCAL, PLATFORMS
from zooid.core.errors import InputError, PlanError
from zooid.core.plans.plan import FixedLayout, Limits, Plan
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.core.units import format_bytes, format_duration, format_usd


def check_given(
    plan: Plan,
    limits: Limits | None,
    goal: Goal | None,
    links: Links | None,
    on: str | None,
    *,
    reproducible: bool = False,
) -> None:
    """Reject a given plan that this process cannot start, or that comes with options which it already settles.

    Only a deadline and a budget may come with a plan.
    """
    are_settled = limits is not None and limits != Limits(deadline_s=limits.deadline_s, budget_usd=limits.budget_usd)
    if are_settled or any(option is not None for option in (goal, links, on)):
        raise InputError(
            "a plan is given together with a layout, a goal, links or `on`, which the plan already settles; give them "
            "when planning, or leave out the plan"
        )
    for offer in plan.offers:
        if offer.platform not in PLATFORMS:
            raise InputError(
                f"the plan uses {offer.name}, but members can be started only on {', '.join(PLATFORMS)}; plan for these"
            )
    check_memory(plan)
    if reproducible and not plan.reproducible:  # its predicted time and memory would not apply
        raise InputError(
            "`reproducible` is given, but the plan was made without it; make the plan with `zooid plan --reproducible` "
            "(in Python, zooid.Limits(reproducible=True))"
        )


def check_predicted(plan: Plan, limits: Limits | None) -> None:
    """Reject a given plan whose prediction breaks the limits."""
    if limits is None or plan.predicted is None:
        return
    run_s = plan.predicted.run_p95_s or plan.predicted.run_s
    run_usd = plan.predicted.run_p95_usd or plan.predicted.run_usd
    if limits.deadline_s is not None and run_s > limits.deadline_s:
        raise PlanError(
            f"the plan may take {format_duration(run_s)}, and the deadline is {format_duration(limits.deadline_s)}; "
            "allow at least that, or let zooid search for a faster plan"
        )
    if limits.budget_usd is not None and run_usd > limits.budget_usd:
        raise PlanError(
            f"the plan may cost {format_usd(run_usd)}, and the budget is {format_usd(limits.budget_usd)}; "
            "allow at least that, or let zooid search for a cheaper plan"
        )


def fixed_layout(
    plan: Plan | None, limits: Limits | None, goal: Goal | None, links: Links | None, offers: Sequence[Offer]
) -> FixedLayout:
    """Return the layout of a job that is not profiled; reject options that need a profile."""
    if plan is not None:
        raise InputError("a plan is given and `profile` is False; a plan needs no profile: leave out one of them")
    if limits is None or limits.num_replicas is None or limits.num_stages is None:
        raise InputError(
            "a job that is not profiled needs a layout; give the numbers of replicas and stages, for example "
            "--layout 1x1 (in Python, zooid.Limits(num_replicas=1, num_stages=1))"
        )
    for offer in offers:
        if offer.sized_by:
            raise InputError(
                f"{offer.sized_by} has many sizes, and a job that is not profiled says nothing about the memory of its "
                f"members; give a size, for example {offer.name}, or let the job be profiled"
            )
    for what, value in (
        ("a goal", goal),
        ("links", links),
    ):
        if value is not None:
            raise InputError(
                f"{what} cannot be honoured if the job is not profiled, because time and money are unknown; leave it "
                "out, or let the job be profiled"
            )
    return FixedLayout(
        num_replicas=limits.num_replicas,
        num_stages=limits.num_stages,
        schedule=limits.schedule or "1f1b",
        transport=limits.transport or "store",
        reproducible=limits.reproducible,
        insured=limits.insured,
        offers=_spread(limits.num_replicas, limits.num_stages, offers),
    )


def _spread(num_replicas: int, num_stages: int, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offer of every replica, or of every stage of a single one. Each offer is filled before the next.

    Of offers without a limit, the first one has room for all.
    """
    num_parts, part_members = (num_replicas, num_stages) if num_replicas > 1 else (num_stages, 1)
    parts = [
        offer
        for offer in offers
        for _ in range(num_parts if offer.max_members is None else offer.max_members // part_members)
    ]
    if len(parts) < num_parts:
        rooms = ", ".join(f"{offer.name} has room for {offer.max_members}" for offer in offers)
        what = "a replica has all its stages on one offer" if num_replicas > 1 else "give more offers, or fewer stages"
        raise InputError(
            f"the layout {num_replicas}x{num_stages} needs room for {num_replicas * num_stages} members, but {rooms}; "
            f"{what}"
        )
    return tuple(parts[:num_parts]) if len(set(parts[:num_parts])) > 1 else tuple(parts[:1])


def check_memory(plan: Plan) -> None:
    """Reject a plan with a stage that exceeds its offer's memory, or whose members together exceed this machine's."""
    for number, stage in enumerate(plan.stages):
        offers = [plan.offer_of(number, replica) for replica in range(plan.num_replicas)]
        offer = min(offers, key=lambda offer: offer.member_bytes)
        missing = stage.memory_bytes - offer.member_bytes
        if missing > 0:
            raise PlanError(
                f"stage {number} of the plan (layers {stage.first_layer} to {stage.end_layer - 1}) needs "
                f"{format_bytes(stage.memory_bytes)}, but {offer.name} has {format_bytes(offer.member_bytes)}: "
                f"{format_bytes(missing)} are missing; plan with more stages, a smaller job.grain_size or a larger "
                "offer"
            )
    shared = plan.offers[0]
    total_bytes = plan.num_holders * sum(stage.memory_bytes for stage in plan.stages)
    if shared.site == LOCAL and total_bytes > shared.memory_bytes:
        raise PlanError(
            f"the plan's {plan.num_members} members need {format_bytes(total_bytes)} together, but this machine has "
            f"{format_bytes(shared.memory_bytes)}: {format_bytes(total_bytes - shared.memory_bytes)} are missing; plan "
            "with fewer replicas or a smaller job.grain_size"
        )


def check_continues(plan: Plan, manifest: CheckpointManifest, url: str) -> None:
    """Reject a plan that changes the model, the batch size or the grain size of a run; only the layout may change."""
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
