"""Plans whose stages are on different offers, or have different sizes of one, from FuncPipe's co-optimisation (§3.4).

The optimiser is exact for the closed form: it chooses cuts, sizes and the number of replicas together. If the number of
stages is required, it chooses sizes and replicas for some cuts, which are the best for equal members.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, Plan, num_holders
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.families import schedules
from zooid.planner.front import pareto
from zooid.planner.market import Market
from zooid.planner.member_sizes import holdable_bytes, needed_bytes, sizes_of
from zooid.planner.partition import Partition, StageTable, best_partitions
from zooid.planner.stage_sizes import (
    Allocation,
    Degree,
    FittedSizes,
    LayerCosts,
    MemberSizes,
    StageSizesProblem,
    StageSizesSearch,
)
from zooid.predictor import stage_memory_table
from zooid.predictor.equations.array_checks import Array

AnyPoint = TypeVar("AnyPoint")

MAX_LAYERS = 64
"""In models with more layers, all stages get the same size."""
MAX_POINTS = 24
"""Number of points of a front that become plans, evenly from the fastest to the cheapest."""
MAX_CUTS = 6
"""Number of partitions for which sizes are chosen if the number of stages is required."""
SEARCH_S = 1.0
"""Time limit of an optimiser that mixes offers of a site."""


def mixed_stages(market: Market, limits: Limits, grain_size: int, search_s: float) -> Iterator[Plan]:
    """Stages on different offers of one site, which exchange through the store (FuncPipe)."""
    if limits.transport not in (None, "store") or not 2 <= len(market.profile.layers) <= MAX_LAYERS:
        return
    usable = [
        offer
        for offer in market.offers
        if market.links_of(offer, is_direct=False) and grain_size <= market.world.profile_of(offer).largest_grain
    ]
    num_grains = math.ceil(market.profile.batch_size / grain_size)
    max_replicas = limits.max_members // (limits.num_stages or 1)
    counts = [limits.num_replicas] if limits.num_replicas else range(1, max_replicas + 1)
    degrees = [
        Degree(num_replicas=count, num_grains=math.ceil(num_grains / count)) for count in counts if count <= num_grains
    ]
    for offers in by_site(usable) if degrees else ():
        problem = _stage_problem(market, limits, grain_size, offers, degrees)
        cuts = None if limits.num_stages is None else _cuts(market, grain_size, offers, problem, limits.num_stages)
        for point in spread(_front(problem, cuts, search_s)):
            chosen = [offers[size] for size in point.sizes]
            num_replicas = point.degree.num_replicas
            num_each = num_holders(num_replicas, is_insured=limits.insured)
            is_of_family = len(set(chosen)) == 1 and not _is_grown(problem, point)
            if is_of_family or limits.num_stages not in (None, len(chosen)):
                continue
            if num_each * len(chosen) > limits.max_members or not market.within_quotas(chosen * num_each):
                continue
            for schedule, ahead in schedules(limits.schedule, len(chosen)):
                yield market.plan(
                    point.stages,
                    chosen,
                    num_replicas=num_replicas,
                    grain_size=grain_size,
                    transport="store",
                    schedule=schedule,
                    ahead=ahead,
                    reproducible=limits.reproducible,
                    insured=limits.insured,
                )


def _front(problem: StageSizesProblem, cuts: Sequence[Partition] | None, search_s: float) -> list[Allocation]:
    """The Pareto front of all pipelines, or of those with these cuts; empty if nothing fits."""
    points: list[Allocation] = []
    for partition in [None] if cuts is None else cuts:
        try:
            points += StageSizesSearch(problem.with_cuts(partition)).front(search_s).points
        except PlanError:  # nothing fits, which the search explains better
            continue
    return pareto(points)


def _cuts(
    market: Market, grain_size: int, offers: Sequence[Offer], problem: StageSizesProblem, num_stages: int
) -> list[Partition]:
    """The closed form's best cuts into a required number of stages, for equal members that are slow, and fast."""
    by_speed = sorted(range(len(offers)), key=lambda size: float(problem.layers.forward_s[:, size].sum()))
    links = market.links_of(offers[0], is_direct=False)
    found: dict[Partition, None] = {}
    for number, degree in enumerate(problem.degrees):
        fits = np.zeros((len(market.profile.layers) + 1,) * 2, bool)
        fits[:-1] = problem.needed_bytes[number] <= problem.sizes.memory_bytes.max()
        for size in (by_speed[0], by_speed[-1]):
            profile = market.world.profile_of(offers[size])
            table = StageTable.of_profile(profile, grain_size, degree.num_grains, links, degree.num_replicas)
            found |= dict.fromkeys(best_partitions(replace(table, fits=fits), [num_stages], max_each=1)[num_stages])
    return list(found)[:MAX_CUTS]


def _is_grown(problem: StageSizesProblem, point: Allocation) -> bool:
    """Whether a stage needs more memory than its size has, so that its members get a faster one."""
    first, end = np.array(point.stages).T
    degree = problem.degrees.index(point.degree)
    return bool((problem.slowness(degree, first, end, np.array(point.sizes)) < 1).any())


def _stage_problem(
    market: Market, limits: Limits, grain_size: int, offers: Sequence[Offer], degrees: Sequence[Degree]
) -> StageSizesProblem:
    """FuncPipe's problem: which layers on which offer, with how many replicas."""
    profile = market.profile
    profiles = [market.world.profile_of(offer) for offer in offers]
    predicted_bytes = np.array(
        [
            stage_memory_table(
                profile,
                grain_size,
                # the first stage of 1F1B keeps most grains
                min(degree.num_grains, max(1, limits.max_members // degree.num_replicas)),
                num_replicas=degree.num_replicas,
            )
            for degree in degrees
        ]
    )
    up, down = market.links_of(offers[0], is_direct=False)
    return StageSizesProblem(
        layers=LayerCosts(
            forward_s=np.array([[layer.forward_s(grain_size) for layer in own.layers] for own in profiles]).T,
            backward_s=np.array([[layer.backward_s(grain_size) for layer in own.layers] for own in profiles]).T,
            parameter_bytes=np.array([float(layer.parameter_bytes) for layer in profile.layers]),
            out_bytes=np.array([layer.boundary.at(grain_size) for layer in profile.layers]),
        ),
        sizes=MemberSizes(
            memory_bytes=np.array([holdable_bytes(offer) for offer in offers]),
            bytes_per_s=np.full(len(offers), min(up.bytes_per_s, down.bytes_per_s)),
            usd_per_s=np.array([offer.usd_per_hour / SECONDS_PER_HOUR for offer in offers]),
        ),
        degrees=tuple(degrees),
        latency_s=(up.rtt_s + down.rtt_s) / 2,
        needed_bytes=predicted_bytes,
        fitted=_fitted_sizes(offers, predicted_bytes),
    )


def _fitted_sizes(offers: Sequence[Offer], predicted_bytes: Array) -> FittedSizes | None:
    """Speed and price of the sizes that hold so much memory; None if all sizes are fixed."""
    if not any(offer.sized_by for offer in offers):
        return None
    slowness, dearness = [], []
    for offer in offers:
        sizes = sizes_of(offer)
        index = np.searchsorted(sizes.memory_bytes, needed_bytes(predicted_bytes, offer))
        index = np.minimum(index, len(sizes.memory_bytes) - 1)
        slowness.append(sizes.slowness[index])
        dearness.append(sizes.dearness[index])
    return FittedSizes(np.stack(slowness, axis=-1), np.stack(dearness, axis=-1))


def by_site(offers: Iterable[Offer]) -> list[list[Offer]]:
    """The offers of each site that has several."""
    sites: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        sites[offer.site].append(offer)
    return [same_site for same_site in sites.values() if len(same_site) > 1]


def spread(points: Sequence[AnyPoint]) -> list[AnyPoint]:
    """At most MAX_POINTS points, evenly spread over a front, with both its ends."""
    if len(points) <= MAX_POINTS:
        return list(points)
    return [points[round(index)] for index in np.linspace(0, len(points) - 1, MAX_POINTS)]
