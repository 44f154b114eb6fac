"""What to tell a user whose limits no plan can meet: which limit binds, and how far it would have to be loosened."""

import math

from zooid.core.plan import Limits, Plan
from zooid.core.profile import Profile
from zooid.core.units import format_bytes, format_duration, format_usd


def no_layout(profile: Profile, limits: Limits, smallest_grain: int) -> str:
    """The layout that was asked for does not exist for this job."""
    num_layers = len(profile.layers)
    if limits.num_stages is not None and limits.num_stages > num_layers:
        return (
            f"{limits.num_stages} stages are asked for, but {profile.job} has only {num_layers} layers; ask for fewer"
        )
    num_grains = math.ceil(profile.batch_size / smallest_grain)
    return (
        f"{limits.num_replicas} replicas are asked for, but a batch of {profile.batch_size} has only {num_grains} "
        f"grains of {smallest_grain}; ask for fewer, or give job.grain_size"
    )


def missing_bytes(plan: Plan) -> int:
    """What the worst stage needs beyond its offer's memory; not above 0 where all fit. Local members share theirs."""
    if plan.offers[0].site == "local":
        together = plan.num_replicas * sum(stage.memory_bytes for stage in plan.stages)
        return together - plan.offers[0].memory_bytes
    return max(stage.memory_bytes - plan.offer_of(at).memory_bytes for at, stage in enumerate(plan.stages))


def what_binds(plans: list[Plan], limits: Limits) -> str:
    """The limit that no plan meets. Numbers are rounded up: what a user copies from the message is enough."""
    fitting = [plan for plan in plans if missing_bytes(plan) <= 0]
    if not fitting:
        return _memory(min(plans, key=missing_bytes))
    fastest = min(fitting, key=lambda plan: plan.prediction.run_s)
    cheapest = min(fitting, key=lambda plan: plan.prediction.run_usd)
    if limits.deadline_s is not None and fastest.prediction.run_s > limits.deadline_s:
        return (
            f"no plan ends within {format_duration(limits.deadline_s)}: the fastest, {fastest.layout}, needs "
            f"{_round_up(fastest.prediction.run_s)}s; allow at least that, or more members"
        )
    if limits.budget_usd is not None and cheapest.prediction.run_usd > limits.budget_usd:
        return (
            f"no plan costs at most {format_usd(limits.budget_usd)}: the cheapest, {cheapest.layout}, needs "
            f"${_round_up(cheapest.prediction.run_usd)}; allow at least that"
        )
    return "no plan meets deadline and budget at the same time; loosen one of them, or allow more members"


def _memory(closest: Plan) -> str:
    if closest.offers[0].site == "local":
        needed = missing_bytes(closest) + closest.offers[0].memory_bytes
        return (
            f"no plan fits the memory of this machine: the one with the smallest need, {closest.layout}, needs "
            f"{format_bytes(needed)} of {format_bytes(closest.offers[0].memory_bytes)}; give a smaller job.grain_size"
        )
    at, stage = max(enumerate(closest.stages), key=lambda pair: pair[1].memory_bytes)
    offer = closest.offer_of(at)
    return (
        f"no plan fits the memory of {offer.name}: in the one with the smallest need, {closest.layout}, stage {at} "
        f"(layers {stage.first_layer} to {stage.end_layer - 1}) needs {format_bytes(stage.memory_bytes)}, "
        f"and a member has {format_bytes(offer.memory_bytes)}; allow more stages or give a smaller job.grain_size"
    )


def _round_up(value: float) -> str:
    """Three digits, never below the value."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    rounded = math.ceil(value / unit) * unit
    text = f"{rounded:.12f}".rstrip("0").rstrip(".")
    return text if float(text) >= value else f"{rounded + unit:.12f}".rstrip("0").rstrip(".")
