"""What to tell a user whose limits no plan can meet: which limit binds, and how far it would have to be loosened."""

import math
from collections.abc import Sequence

from zooid.core.plans.plan import Limits, Plan
from zooid.core.units import format_bytes, format_duration, format_usd
from zooid.planner.drafts import Draft
from zooid.planner.market import Market
from zooid.predictor import stage_memory_bytes
from zooid.schedule.samples import even_shares


def no_layout(market: Market, limits: Limits, smallest_grain: int) -> str:
    """The layout that was asked for does not exist for this job."""
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
    """What a deadline is compared with: 95 of 100 runs do not take longer."""
    prediction = plan.prediction
    return prediction.run_s if prediction.run_p95_s is None else prediction.run_p95_s


def budget_usd_of(plan: Plan) -> float:
    """What a budget is compared with: 95 of 100 runs do not cost more."""
    prediction = plan.prediction
    return prediction.run_usd if prediction.run_p95_usd is None else prediction.run_p95_usd


def broken_limit(plan: Plan, limits: Limits) -> str:
    """Which limit a plan would break, in words; empty where it breaks none."""
    late_s, dear_usd = deadline_s_of(plan), budget_usd_of(plan)
    if limits.deadline_s is not None and late_s > limits.deadline_s:
        return f"the deadline: it may take {format_duration(late_s)} of {format_duration(limits.deadline_s)}"
    if limits.budget_usd is not None and dear_usd > limits.budget_usd:
        return f"the budget: it may cost {format_usd(dear_usd)} of {format_usd(limits.budget_usd)}"
    return ""


def what_binds(plans: Sequence[Plan], limits: Limits) -> str:
    """The limit that none of all plans meets. Numbers are rounded up: what a user copies from the message is enough."""
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
        "no plan meets deadline and budget at the same time: what ends in time costs at least "
        f"${_round_up(budget_usd_of(in_time))} ({in_time.layout}), and what the budget allows needs "
        f"{_round_up(deadline_s_of(in_budget))}s ({in_budget.layout}); loosen one of them, or allow more members"
    )


def too_large(closest: Draft, market: Market) -> str:
    """Nothing fits: what the plan with the smallest need lacks, and where."""
    proposal, profile = closest.proposal, market.profile
    layout = f"{proposal.num_replicas}x{len(proposal.partition)}"
    row = proposal.rows[0]
    if row[0].site == "local":
        needed = closest.missing_bytes + row[0].memory_bytes
        return (
            f"no plan fits the memory of this machine: the one with the smallest need, {layout}, needs "
            f"{format_bytes(needed)} of {format_bytes(row[0].memory_bytes)}; give a smaller job.grain_size"
        )
    at = max(range(len(row)), key=lambda stage: closest.memory_bytes[stage] - row[stage].memory_bytes)
    first, end = proposal.partition[at]
    message = (
        f"no plan fits the memory of {row[at].name}: in the one with the smallest need, {layout}, stage {at} "
        f"(layers {first} to {end - 1}) needs {format_bytes(closest.memory_bytes[at])}, "
        f"and a member has {format_bytes(row[at].memory_bytes)}; "
    )
    num_grains = math.ceil(profile.batch_size / proposal.grain_size)
    copies = proposal.gradient_copies(proposal.shares or even_shares(num_grains, proposal.num_replicas))
    alone = [
        stage_memory_bytes(profile, layer, layer + 1, proposal.grain_size, 1, **copies)
        for layer in range(len(profile.layers))
    ]
    missing = max(alone) - row[at].memory_bytes
    if missing > 0:
        largest = profile.layers[alone.index(max(alone))].name
        return message + (
            f"the layer {largest} alone lacks {format_bytes(missing)}, so that no cut helps: give a larger offer or a "
            "smaller job.grain_size"
        )
    return message + "allow more stages or give a smaller job.grain_size"


def _round_up(value: float) -> str:
    """Three digits, never below the value."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    rounded = math.ceil(value / unit) * unit
    text = f"{rounded:.12f}".rstrip("0").rstrip(".")
    return text if float(text) >= value else f"{rounded + unit:.12f}".rstrip("0").rstrip(".")
