"""Plans whose members differ, from the optimisers of three papers.

A market becomes the problem of each optimiser, and its answers become plans: stages of different sizes (FuncPipe),
replicas of different types (Srifty), and replicas at several sites (clouds and continents). Each optimiser is exact for
its paper's closed form. The simulator then decides between their answers.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, Plan, TransportName, num_holders
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.families import schedules, transports
from zooid.planner.fleets import AllReduceOfVm, ComputePoint, FleetProblem, Hire, VmType, fleet_front
from zooid.planner.market import Market
from zooid.planner.member_sizes import fitted, holdable_bytes, missing_bytes, needed_bytes, sizes_of
from zooid.planner.sites import SiteOffer, SiteProblem, egress_between, site_front
from zooid.planner.stage_sizes import (
    Allocation,
    Degree,
    FittedSizes,
    LayerCosts,
    MemberSizes,
    StageSizesProblem,
    StageSizesSearch,
)
from zooid.predictor import stage_memory_bytes, stage_memory_table, stage_times
from zooid.predictor.equations import streaming_bound_s
from zooid.predictor.equations.array_checks import Array
from zooid.schedule.share_rule import balanced_shares

AnyPoint = TypeVar("AnyPoint")
Members = Sequence[tuple[Offer, int]]
"""The offer of each replica of one stage, and the number of grains that it computes."""

MAX_LAYERS = 64
"""In models with more layers, all stages get the same size."""
MAX_POINTS = 24
"""Number of points of a front that become plans, evenly from the fastest to the cheapest."""
MAX_COMBINATIONS = 500
"""Offers are combined for a required number of replicas only if there are at most this many combinations."""
SEARCH_S = 1.0
"""Time limit of an optimiser. Its unproven answers become plans, too."""


def mixed_plans(market: Market, limits: Limits, grain_sizes: Sequence[int]) -> Iterator[Plan]:
    """Plans of all three kinds with these grain sizes."""
    for grain_size in grain_sizes:
        yield from _mixed_stages(market, limits, grain_size)
        for transport in _common_transports(market, limits):
            if not _may_mix_replicas(market, limits, grain_size):
                continue
            if limits.num_replicas is not None:
                replicas = _combinations(market, limits.num_replicas, grain_size, transport)
            else:
                replicas = itertools.chain(
                    _mixed_fleets(market, limits, grain_size, transport),
                    _mixed_sites(market, limits, grain_size, transport),
                )
            for members in replicas:
                plan = whole_models(market, grain_size, transport, members, limits)
                if plan.num_members <= limits.max_members and market.within_quotas(plan.member_offers):
                    yield plan


def whole_models(
    market: Market, grain_size: int, transport: TransportName, members: Members, limits: Limits | None = None
) -> Plan:
    """A plan in which each member is a replica of one stage, with its own number of grains."""
    offers = [offer for offer, _ in members]
    plan = market.plan(
        [(0, len(market.profile.layers))],
        offers[:1],
        num_replicas=len(members),
        grain_size=grain_size,
        transport=transport,
        reproducible=limits is not None and limits.reproducible,
        insured=limits is not None and limits.insured,
    )
    by_name = {offer.name: offer for offer in offers}
    return structs.replace(
        plan,
        shares=tuple(share for _, share in members),
        replica_offers=tuple(offer.name for offer in offers) if len(by_name) > 1 else (),
        offers=tuple(by_name.values()),
    )


def _mixed_stages(market: Market, limits: Limits, grain_size: int) -> Iterator[Plan]:
    """Stages on different offers of one site, which exchange through the store (FuncPipe)."""
    if limits.transport not in (None, "store") or not 2 <= len(market.profile.layers) <= MAX_LAYERS:
        return
    usable = [
        offer
        for offer in market.offers
        if market.links_of(offer, is_direct=False) and grain_size <= market.world.profile_of(offer).largest_grain
    ]
    num_grains = math.ceil(market.profile.batch_size / grain_size)
    counts = [limits.num_replicas] if limits.num_replicas else range(1, limits.max_members + 1)
    degrees = [
        Degree(num_replicas=count, num_grains=math.ceil(num_grains / count)) for count in counts if count <= num_grains
    ]
    for offers in _by_site(usable) if degrees else ():
        problem = _stage_problem(market, limits, grain_size, offers, degrees)
        try:
            front = StageSizesSearch(problem).front(SEARCH_S)
        except PlanError:  # nothing fits, which the search explains better
            continue
        for point in _spread(front.points):
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


def _combinations(market: Market, num_replicas: int, grain_size: int, transport: TransportName) -> Iterator[Members]:
    """All combinations of different offers for a required number of replicas, if these are not too many."""
    all_offers = _sized_for_all(market, market.offers, grain_size)
    num_grains, num_offers = market.profile.batch_size // grain_size, len(all_offers)
    too_many = math.comb(num_replicas + num_offers - 1, num_offers - 1) > MAX_COMBINATIONS
    if too_many or num_replicas > num_grains or (transport != "store" and not _are_connected(market)):
        return
    for offers in itertools.combinations_with_replacement(all_offers, num_replicas):
        if len(set(offers)) > 1:
            yield shared_by_speed(market, offers, grain_size)


def _mixed_fleets(market: Market, limits: Limits, grain_size: int, transport: TransportName) -> Iterator[Members]:
    """Replicas on different offers of one site (Srifty)."""
    for same_site in _by_site(market.offers):
        offers = holding(market, same_site, grain_size)
        if len(offers) > 1:
            problem, all_reduce_s = fleet_problem(market, offers, limits.max_members, grain_size, transport)
            front = fleet_front(problem, all_reduce_s=all_reduce_s, limit_s=SEARCH_S)
            for fleet in _spread([fleet for fleet in front.fleets if len(fleet.hires) > 1]):
                yield hired(fleet.hires, offers, grain_size)


def holding(market: Market, offers: Sequence[Offer], grain_size: int) -> list[Offer]:
    """The offers whose memory holds a replica of one stage, each with the size that does."""
    predicted_bytes = _whole_bytes(market, grain_size)
    return [offer for offer in _sized_for_all(market, offers, grain_size) if missing_bytes(predicted_bytes, offer) <= 0]


def _sized_for_all(market: Market, offers: Sequence[Offer], grain_size: int) -> list[Offer]:
    """The offers with the sizes that hold a replica of one stage, as far as sizes can be chosen."""
    predicted_bytes = _whole_bytes(market, grain_size)
    return list({offer.name: offer for offer in (fitted(offer, predicted_bytes) for offer in offers)}.values())


def _whole_bytes(market: Market, grain_size: int) -> int:
    return stage_memory_bytes(market.profile, 0, len(market.profile.layers), grain_size, 1, num_replicas=2)


def fleet_problem(
    market: Market, offers: Sequence[Offer], max_members: int, grain_size: int, transport: TransportName
) -> tuple[FleetProblem, AllReduceOfVm | None]:
    """Srifty's problem: how many whole models on each of these offers. The all-reduce is given if it is not a ring."""
    profile = market.profile
    links = market.links_of(offers[0], is_direct=transport != "store")
    bytes_per_s = min(link.bytes_per_s for link in links)
    gradient_bytes = float(profile.parameter_bytes(0, len(profile.layers)))
    problem = FleetProblem(
        vms=tuple(
            VmType(
                name=offer.name,
                market="spot" if offer.market == "spot" else "on_demand",
                usd_per_hour=offer.usd_per_hour,
                quota=market.max_members_on(offer, max_members),
                compute=(ComputePoint(num_samples=grain_size, compute_s=_grain_s(market, offer, grain_size)),),
                bytes_per_s=bytes_per_s,
            )
            for offer in offers
        ),
        batch_size=profile.batch_size,
        grain_size=grain_size,
        num_steps=max(1, round(profile.num_samples * profile.epochs / profile.batch_size)),
        gradient_bytes=gradient_bytes,
        latency_s=links[0].rtt_s,
    )

    def through_store_s(num_members: int, vm: VmType) -> float:
        return float(streaming_bound_s(gradient_bytes, num_members, bytes_per_s)) if num_members > 1 else 0.0

    return problem, through_store_s if transport == "store" else None


def hired(hires: Iterable[Hire], offers: Sequence[Offer], grain_size: int) -> Members:
    """The members of a fleet."""
    by_name = {offer.name: offer for offer in offers}
    return [
        (by_name[hire.vm], batch.num_samples // grain_size)
        for hire in hires
        for batch in hire.local_batches
        for _ in range(batch.num_members)
    ]


def _mixed_sites(market: Market, limits: Limits, grain_size: int, transport: TransportName) -> Iterator[Members]:
    """Replicas at several connected sites (clouds and continents)."""
    profile, world = market.profile, market.world
    sites = list(dict.fromkeys(offer.site for offer in market.offers))
    if transport == "store" or len(sites) < 2 or not _are_connected(market):
        return
    all_offers = _sized_for_all(market, market.offers, grain_size)
    problem = SiteProblem(
        offers=tuple(
            SiteOffer(
                name=offer.name,
                site=offer.site,
                samples_per_s=grain_size / _grain_s(market, offer, grain_size),
                usd_per_hour=offer.usd_per_hour,
                max_members=market.max_members_on(offer, limits.max_members),
            )
            for offer in all_offers
        ),
        links=tuple(_link(market, from_site, to_site) for from_site in sites for to_site in sites),
        egress=egress_between(world.prices, sites),
        batch_size=profile.batch_size,
        gradient_bytes=float(profile.parameter_bytes(0, len(profile.layers))),
        num_samples=profile.num_samples * profile.epochs,
        max_members=limits.max_members,
    )
    by_name = {offer.name: offer for offer in all_offers}
    for choice in _spread(site_front(problem).choices):
        offers = [by_name[count.offer] for count in choice.counts for _ in range(count.num_members)]
        if len(set(offers)) > 1 and len(offers) <= profile.batch_size // grain_size:
            yield shared_by_speed(market, offers, grain_size)


def _link(market: Market, from_site: str, to_site: str) -> Link:
    link = market.world.links[from_site, to_site]
    return Link(
        from_site=from_site,
        to_site=to_site,
        bandwidth_bytes_per_s=link.bytes_per_s,
        rtt_s=link.rtt_s,
        stream_bytes_per_s=None if math.isinf(link.stream_bytes_per_s) else link.stream_bytes_per_s,
        source="as it is known here",
        date="",
    )


def _common_transports(market: Market, limits: Limits) -> list[TransportName]:
    """Transports that every offer supports."""
    first, *others = (transports(market, offer, limits) for offer in market.offers)
    return [transport for transport in first if all(transport in other for other in others)]


def _may_mix_replicas(market: Market, limits: Limits, grain_size: int) -> bool:
    """Whether replicas of one stage are allowed, fit all offers' largest grains, and divide the batch evenly."""
    fits = all(grain_size <= market.world.profile_of(offer).largest_grain for offer in market.offers)
    return fits and limits.num_stages in (None, 1) and market.profile.batch_size % grain_size == 0


def _are_connected(market: Market) -> bool:
    """Whether there is a link between any two sites."""
    sites = {offer.site for offer in market.offers}
    return all(ends in market.world.links for ends in itertools.product(sites, repeat=2))


def _by_site(offers: Iterable[Offer]) -> list[list[Offer]]:
    """The offers of each site that has several."""
    by_site: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        by_site[offer.site].append(offer)
    return [same_site for same_site in by_site.values() if len(same_site) > 1]


def _grain_s(market: Market, offer: Offer, grain_size: int) -> float:
    """Time of the whole model for a grain."""
    times = stage_times(market.world.profile_of(offer), 0, len(market.profile.layers), grain_size)
    return times.forward_s + times.backward_s


def shared_by_speed(market: Market, offers: Sequence[Offer], grain_size: int) -> Members:
    """Give each member as many grains as fit its speed, so that the last one ends first."""
    paces = [_grain_s(market, offer, grain_size) for offer in offers]
    shares = balanced_shares(paces, market.profile.batch_size // grain_size)
    return list(zip(offers, shares, strict=True))


def _spread(points: Sequence[AnyPoint]) -> list[AnyPoint]:
    """At most MAX_POINTS points, evenly spread over a front, with both its ends."""
    if len(points) <= MAX_POINTS:
        return list(points)
    return [points[round(index)] for index in np.linspace(0, len(points) - 1, MAX_POINTS)]
