"""Data parallelism on functions, as LambdaML has it: whole models that reduce their gradients in three phases through
the store (FuncPipe §5.1, Appendix D). The papers let the batch say how many workers there are; here every number of
them is proposed, so that whoever compares takes the best."""

import math
from collections.abc import Iterator

from msgspec import structs

from benchmarks.baselines.simulated import fits
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.planner import Market
from zooid.planner.families import grain_sizes


def lambda_ml(market: Market, max_members: int) -> Iterator[Plan]:
    """The largest memory, and each worker's local batch in one grain."""
    profile = market.profile
    largest = max(market.offers, key=lambda offer: offer.memory_bytes)
    for num_workers in range(1, max_members + 1):
        grain_size = math.ceil(profile.batch_size / num_workers)
        if grain_size <= profile.largest_grain and has_work(market, num_workers, grain_size):
            yield workers(market, largest, num_workers, grain_size)


def lambda_ml_accumulating(market: Market, max_members: int) -> Iterator[Plan]:
    """LambdaML-GA: gradients are accumulated over smaller grains, on the smallest memory in which that goes."""
    by_memory = sorted(market.offers, key=lambda offer: offer.memory_bytes)
    for num_workers in range(1, max_members + 1):
        for grain_size in grain_sizes(market.profile):
            if has_work(market, num_workers, grain_size):
                each = (workers(market, offer, num_workers, grain_size) for offer in by_memory)
                if smallest := next((proposal for proposal in each if fits(proposal, market)), None):
                    yield smallest


def workers(market: Market, offer: Offer, num_workers: int, grain_size: int) -> Plan:
    """So many whole models."""
    whole = [(0, len(market.profile.layers))]
    plan = market.plan(whole, [offer], num_replicas=num_workers, grain_size=grain_size, transport="store")
    return structs.replace(plan, all_reduce="three_phase")


def has_work(market: Market, num_workers: int, grain_size: int) -> bool:
    """Whether nobody goes without a grain."""
    return math.ceil(market.profile.batch_size / grain_size) >= num_workers
