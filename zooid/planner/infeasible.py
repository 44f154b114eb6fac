"""Infeasible plans: which limit a plan breaks, and how far a user must loosen a limit that no plan meets."""

import math
from collections.abc import Sequence

from zooid.core.plans.plan import Limits, Plan
from zooid.core.resources.offer import Offer
from zooid.core.units import format_bytes, format_duration, format_usd
from zooid.planner.drafts import Draft
from zooid.planner.families import Family
from zooid.planner.market import Market
from zooid.predictor import gradient_copies, stage_memory_bytes
from zooid.schedule.samples import even_shares


def no_layout(market: Market, limits: Limits, smallest_grain: int) -> str:
    """Explain why the layout that was asked for does not exist for this job."""
    profile = market.profile
    num_layers = len(profile.layers)
    if limits.num_stages is not None and limits.num_stages > num_layers:
        if profile.why_whole:
            return (
                f"{limits.num_stages} stages are asked for, but {profile.job} can only be trained as one: "
                f"{profile.why_whole}. Ask for one stage, with as many replicas as you like, or change the model"
            )
        return (
            f"{limits.num_stages} stages are asked for, but {profile.job} has only {num_layers} layers; ask for fewer"
        )
    num_grains = math.ceil(profile.batch_size / smallest_grain)
    if limits.num_replicas is not None and limits.num_replicas > num_grains:
        return (
            f"{limits.num_replicas} replicas are asked for, but a batch of {profile.batch_size} has only {num_grains} "
            f"grains of {smallest_grain}; ask for fewer, or give job.grain_size"
        )
    quotas = ", ".join(f"{name} {quota}" for name, quota in market.quotas.items())
    copies = ", with a second one for each stage of an insured run," if limits.insured else ""
    return (
        f"{limits.least_members} members{copies} are asked for, but the quotas ({quotas}) allow fewer; raise a quota, "
        "or ask for a smaller layout"
    )


def deadline_s_of(plan: Plan) -> float:
    """The run time that a deadline limits: its 95th percentile, if that was predicted."""
    prediction = plan.prediction
    return prediction.run_s if prediction.run_p95_s is None else prediction.run_p95_s


def budget_usd_of(plan: Plan) -> float:
    """The cost that a budget limits: its 95th percentile, if that was predicted."""
    prediction = plan.prediction
    return prediction.run_usd if prediction.run_p95_usd is None else prediction.run_p95_usd


def broken_limit(plan: Plan, limits: Limits) -> str:
    """Say which limit a plan breaks. Empty if it breaks none."""
    run_s, run_usd = deadline_s_of(plan), budget_usd_of(plan)
    if limits.deadline_s is not None and run_s > limits.deadline_s:
        return f"the deadline: it may take {format_duration(run_s)} of {format_duration(limits.deadline_s)}"
    if limits.budget_usd is not None and run_usd > limits.budget_usd:
        return f"the budget: it may cost {format_usd(run_usd)} of {format_usd(limits.budget_usd)}"
    return ""


def broken_by_bounds(bound_s: float, bound_usd: float, limits: Limits) -> str:
    """Say which limit a candidate certainly breaks, by its lower bounds. Empty if that is not certain."""
    if limits.deadline_s is not None and bound_s > limits.deadline_s:
        return f"the deadline: it takes at least {format_duration(bound_s)}"
    if limits.budget_usd is not None and bound_usd > limits.budget_usd:
        return f"the budget: it costs at least {format_usd(bound_usd)}"
    return ""


def what_binds(plans: Sequence[Plan], limits: Limits) -> str:
    """Say which limit none of these plans meets.

    Numbers are rounded up, so that a user can copy them from the message.
    """
    fastest = min(plans, key=deadline_s_of)
    cheapest = min(plans, key=budget_usd_of)
    if limits.deadline_s is not None and deadline_s_of(fastest) > limits.deadline_s:
        return (
            f"no plan ends within {format_duration(limits.deadline_s)}: the fastest, {fastest.layout}, needs "
            f"{_round_up(deadline_s_of(fastest))}s; allow at least that, or more members"
        )
    if limits.budget_usd is not None and budget_usd_of(cheapest) > limits.budget_usd:
        return (
            f"no plan costs at most {format_usd(limits.budget_usd)}: the cheapest, {cheapest.layout}, needs "
            f"${_round_up(budget_usd_of(cheapest))}; allow at least that"
        )
    assert limits.deadline_s is not None
    assert limits.budget_usd is not None
    in_time = min((plan for plan in plans if deadline_s_of(plan) <= limits.deadline_s), key=budget_usd_of)
    in_budget = min((plan for plan in plans if budget_usd_of(plan) <= limits.budget_usd), key=deadline_s_of)
    return (
        "no plan meets deadline and budget at the same time: plans that end in time cost at least "
        f"${_round_up(budget_usd_of(in_time))} ({in_time.layout}), and plans within the budget need "
        f"{_round_up(deadline_s_of(in_budget))}s ({in_budget.layout}); loosen one of them, or allow more members"
    )


def closest_to_fitting(candidates: Sequence[Family | Draft]) -> Draft:
    """The infeasible candidate that lacks the least memory."""
    drafts = [candidate for candidate in candidates if isinstance(candidate, Draft)]
    closest = min(drafts, key=_missing_bytes, default=None)
    families = [candidate for candidate in candidates if isinstance(candidate, Family)]
    for family in sorted(families, key=_missing_bytes):
        if closest is not None and closest.missing_bytes <= family.missing_bytes:
            break
        closest = min([closest, *family.drafts()] if closest else family.drafts(), key=_missing_bytes)
    assert closest is not None, "there is a candidate"
    return closest


def _missing_bytes(candidate: Family | Draft) -> int:
    return candidate.missing_bytes


def too_large(closest: Draft) -> str:
    """Say that no plan fits memory, and which stage of the plan closest to fitting lacks how much."""
    plan, profile = closest.plan, closest.market.profile
    offers = plan.offer_rows[0]
    if offers[0].site == "local":
        needed = closest.missing_bytes + offers[0].memory_bytes
        return (
            f"no plan fits the memory of this machine: the one with the smallest need, {plan.layout}, needs "
            f"{format_bytes(needed)} of {format_bytes(offers[0].memory_bytes)}; give a smaller job.grain_size"
        )
    number = max(range(len(offers)), key=lambda stage: plan.stages[stage].memory_bytes - offers[stage].member_bytes)
    stage, offer = plan.stages[number], offers[number]
    margin_bytes = closest.missing_bytes - (stage.memory_bytes - offer.member_bytes)
    margin = f" and a margin of {format_bytes(margin_bytes)}" if margin_bytes > 0 else ""
    message = (
        f"no plan fits the memory of {offer.name}: in the one with the smallest need, {plan.layout}, stage {number} "
        f"(layers {stage.first_layer} to {stage.end_layer - 1}) needs {format_bytes(stage.memory_bytes)}{margin}, "
        f"and a member has {format_bytes(offer.member_bytes)}{_of_gpu(offer)}; "
    )
    num_grains = math.ceil(profile.batch_size / plan.grain_size)
    copies = gradient_copies(plan, plan.shares or even_shares(num_grains, plan.num_replicas))
    layer_needs = [
        stage_memory_bytes(profile, layer, layer + 1, plan.grain_size, 1, **copies)
        for layer in range(len(profile.layers))
    ]
    missing_bytes = max(layer_needs) + max(0, margin_bytes) - offer.member_bytes
    if missing_bytes > 0:
        largest = profile.layers[layer_needs.index(max(layer_needs))].name
        return message + (
            f"the layer {largest} alone lacks {format_bytes(missing_bytes)}, so that no cut helps: give a larger offer "
            "or a smaller job.grain_size"
        )
    return message + "allow more stages or give a smaller job.grain_size"


def _round_up(value: float) -> str:
    """Format a number with three digits, rounded up."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    rounded = math.ceil(value / unit) * unit
    text = f"{rounded:.12f}".rstrip("0").rstrip(".")
    return text if float(text) >= value else f"{rounded + unit:.12f}".rstrip("0").rstrip(".")


def _of_gpu(offer: Offer) -> str:
    """Say that it is the GPU's memory that binds."""
    return f" on its {offer.gpu}" if offer.member_bytes < offer.memory_bytes else ""
