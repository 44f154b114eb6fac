"""Proposals whose members differ: stages of different sizes (FuncPipe), replicas of different types (Srifty), and
replicas at several sites (clouds and continents). Each optimiser is exact for its paper's closed form; the simulator
decides which of its answers is worth having."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, TransportName, num_holders
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.families import schedules, transports
from zooid.planner.fleets import AllReduceOfVm, ComputePoint, FleetProblem, Hire, VmType, fleet_front
from zooid.planner.market import Market
from zooid.planner.resources import Degree, Layers, Problem, ResourceSearch, Sizes
from zooid.planner.sites import SiteOffer, SiteProblem, egress_between, site_front
from zooid.predictor import Proposal, stage_memory_bytes, stage_memory_table, stage_times
from zooid.predictor.equations import streaming_bound_s

AnyPoint = TypeVar("AnyPoint")

MOST_LAYERS = 64
"""Of a model with more, stages are not given different sizes."""
MOST_EACH = 24
"""Of a front, so many points are proposed, evenly from the fastest to the cheapest."""
MOST_COMBINATIONS = 500
"""Of offers for replicas whose number is given, so many are proposed at most."""
SEARCH_S = 1.0
"""What an optimiser may take; what it has not proven by then it still proposes."""


def unlike(market: Market, limits: Limits, grain_sizes: Sequence[int]) -> Iterator[Proposal]:
    """Those of all three kinds, with grains of these sizes."""
    for grain_size in grain_sizes:
        yield from _stages(market, limits, grain_size)
        for transport in _common_transports(market, limits):
            if limits.num_replicas is not None:
                yield from _pinned(market, limits, grain_size, transport)
            else:
                yield from _replicas(market, limits, grain_size, transport)
                yield from _sites(market, limits, grain_size, transport)


def _stages(market: Market, limits: Limits, grain_size: int) -> Iterator[Proposal]:
    """Offers of one site that exchange through the store: which of them for which stage, by FuncPipe's closed form."""
    profile = market.profile
    if limits.transport not in (None, "store") or not 2 <= len(profile.layers) <= MOST_LAYERS:
        return
    by_site: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in market.offers:
        if market.ways_of(offer, is_direct=False) and grain_size <= market.world.profile_of(offer).largest_grain:
            by_site[offer.site].append(offer)
    for offers in by_site.values():
        if len(offers) > 1:
            yield from _stages_on(market, limits, grain_size, offers)


def _stages_on(market: Market, limits: Limits, grain_size: int, offers: list[Offer]) -> Iterator[Proposal]:
    profile = market.profile
    num_grains = math.ceil(profile.batch_size / grain_size)
    most = limits.max_members
    degrees = [
        Degree(num_replicas=number, num_grains=math.ceil(num_grains / number))
        for number in range(limits.num_replicas or 1, (limits.num_replicas or min(most, num_grains)) + 1)
        if number <= num_grains
    ]
    if not degrees:
        return
    profiles = [market.world.profile_of(offer) for offer in offers]
    there, back = market.ways_of(offers[0], is_direct=False)
    problem = Problem(
        layers=Layers(
            forward_s=np.array([[layer.forward_s(grain_size) for layer in own.layers] for own in profiles]).T,
            backward_s=np.array([[layer.backward_s(grain_size) for layer in own.layers] for own in profiles]).T,
            parameter_bytes=np.array([float(layer.parameter_bytes) for layer in profile.layers]),
            activation_bytes=np.zeros(len(profile.layers)),
            out_bytes=np.array([layer.boundary.at(grain_size) for layer in profile.layers]),
        ),
        sizes=Sizes(
            memory_bytes=np.array([float(offer.memory_bytes) for offer in offers]),
            bytes_per_s=np.full(len(offers), min(there.bytes_per_s, back.bytes_per_s)),
            usd_per_s=np.array([offer.usd_per_hour / SECONDS_PER_HOUR for offer in offers]),
        ),
        degrees=tuple(degrees),
        latency_s=(there.rtt_s + back.rtt_s) / 2,
        needed_bytes=np.array(
            [
                stage_memory_table(
                    profile,
                    grain_size,
                    min(degree.num_grains, max(1, most // degree.num_replicas)),  # as the first stage of 1F1B keeps
                    num_replicas=degree.num_replicas,
                )
                for degree in degrees
            ]
        ),
    )
    try:
        front = ResourceSearch(problem).front(SEARCH_S)
    except PlanError:  # nothing fits, which the search says better
        return
    for point in _some(front.points):
        chosen = tuple(offers[size] for size in point.sizes)
        num_replicas = point.degree.num_replicas
        if len(set(chosen)) == 1 or limits.num_stages not in (None, len(chosen)):
            continue
        num_each = num_holders(num_replicas, is_insured=limits.insured)
        if num_each * len(chosen) > most or not _within(market, list(chosen) * num_each):
            continue
        for schedule, ahead in schedules(limits.schedule, len(chosen)):
            yield Proposal(
                partition=point.stages,
                offers=chosen,
                num_replicas=num_replicas,
                grain_size=grain_size,
                schedule=schedule,
                ahead=ahead,
                transport="store",
                reproducible=limits.reproducible,
                insured=limits.insured,
            )


def _pinned(market: Market, limits: Limits, grain_size: int, transport: TransportName) -> Iterator[Proposal]:
    """So many replicas, of one member each, on all combinations of offers, where these are not too many."""
    number, kinds = limits.num_replicas or 1, len(market.offers)
    num_grains = market.profile.batch_size // grain_size
    too_many = math.comb(number + kinds - 1, kinds - 1) > MOST_COMBINATIONS
    if not _may_mix(market, limits, grain_size) or too_many or number > num_grains:
        return
    if transport != "store" and not _are_connected(market):
        return
    for offers in itertools.combinations_with_replacement(market.offers, number):
        if len(set(offers)) > 1:
            shares = _shares(num_grains, [1 / _grain_s(market, offer, grain_size) for offer in offers])
            yield from _of_members(market, limits, grain_size, transport, list(zip(offers, shares, strict=True)))


def _replicas(market: Market, limits: Limits, grain_size: int, transport: TransportName) -> Iterator[Proposal]:
    """Offers of one site, each replica one member: how many of each, and who computes how much (Srifty)."""
    if not _may_mix(market, limits, grain_size):
        return
    by_site: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in market.offers:
        by_site[offer.site].append(offer)
    for every in by_site.values():
        offers = holding(market, every, grain_size)
        if len(offers) > 1:
            problem, all_reduce_s = fleet_problem(market, offers, limits.max_members, grain_size, transport)
            front = fleet_front(problem, all_reduce_s=all_reduce_s, limit_s=SEARCH_S)
            for fleet in _some([each for each in front.fleets if len(each.hires) > 1]):
                members = hired(fleet.hires, offers, grain_size)
                yield from _of_members(market, limits, grain_size, transport, members)


def holding(market: Market, offers: Sequence[Offer], grain_size: int) -> list[Offer]:
    """Those on which a member can be a replica of one stage."""
    num_layers = len(market.profile.layers)
    needed = stage_memory_bytes(market.profile, 0, num_layers, grain_size, 1, num_replicas=2)
    return [offer for offer in offers if needed <= offer.memory_bytes]


def fleet_problem(
    market: Market, offers: Sequence[Offer], max_members: int, grain_size: int, transport: TransportName
) -> tuple[FleetProblem, AllReduceOfVm | None]:
    """How many of each of these offers of one site, with whole models; and the all-reduce, where it is not a ring."""
    profile = market.profile
    ways = market.ways_of(offers[0], is_direct=transport != "store")
    rate = min(way.bytes_per_s for way in ways)
    gradient_bytes = float(profile.parameter_bytes(0, len(profile.layers)))
    problem = FleetProblem(
        vms=tuple(
            VmType(
                name=offer.name,
                market="spot" if offer.market == "spot" else "on_demand",
                usd_per_hour=offer.usd_per_hour,
                quota=market.most_on(offer, max_members),
                compute=(ComputePoint(num_samples=grain_size, compute_s=_grain_s(market, offer, grain_size)),),
                bytes_per_s=rate,
            )
            for offer in offers
        ),
        batch_size=profile.batch_size,
        grain_size=grain_size,
        num_steps=max(1, round(profile.num_samples * profile.epochs / profile.batch_size)),
        gradient_bytes=gradient_bytes,
        latency_s=ways[0].rtt_s,
    )

    def through_store_s(number: int, vm: VmType) -> float:
        return float(streaming_bound_s(gradient_bytes, number, rate)) if number > 1 else 0.0

    return problem, through_store_s if transport == "store" else None


def hired(hires: Iterable[Hire], offers: Sequence[Offer], grain_size: int) -> list[tuple[Offer, int]]:
    """Every member of a fleet, and how many grains it computes."""
    named = {offer.name: offer for offer in offers}
    return [
        (named[hire.vm], batch.num_samples // grain_size)
        for hire in hires
        for batch in hire.local_batches
        for _ in range(batch.num_members)
    ]


def _sites(market: Market, limits: Limits, grain_size: int, transport: TransportName) -> Iterator[Proposal]:
    """Offers at several sites that are connected with one another: how many members at each."""
    profile, world = market.profile, market.world
    sites = list(dict.fromkeys(offer.site for offer in market.offers))
    if transport == "store" or len(sites) < 2 or not _are_connected(market):
        return
    if not _may_mix(market, limits, grain_size):
        return
    problem = SiteProblem(
        offers=tuple(
            SiteOffer(
                name=offer.name,
                site=offer.site,
                samples_per_s=grain_size / _grain_s(market, offer, grain_size),
                usd_per_hour=offer.usd_per_hour,
                max_members=market.most_on(offer, limits.max_members),
            )
            for offer in market.offers
        ),
        links=tuple(_link(market, a, b) for a in sites for b in sites),
        egress=egress_between(world.prices, sites),
        batch_size=profile.batch_size,
        gradient_bytes=float(profile.parameter_bytes(0, len(profile.layers))),
        num_samples=profile.num_samples * profile.epochs,
        max_members=limits.max_members,
    )
    named = {offer.name: offer for offer in market.offers}
    num_grains = profile.batch_size // grain_size
    for choice in _some(site_front(problem).choices):
        offers = [named[each.offer] for each in choice.counts for _ in range(each.num_members)]
        if len({offer.name for offer in offers}) > 1 and len(offers) <= num_grains:
            speeds = [1 / _grain_s(market, offer, grain_size) for offer in offers]
            shares = _shares(num_grains, speeds)
            yield from _of_members(market, limits, grain_size, transport, list(zip(offers, shares, strict=True)))


def _of_members(
    market: Market, limits: Limits, grain_size: int, transport: TransportName, members: list[tuple[Offer, int]]
) -> Iterator[Proposal]:
    num_copies = num_holders(len(members), is_insured=limits.insured) - len(members)
    offers = [offer for offer, _ in members]
    offers += offers[:num_copies]
    if len(offers) > limits.max_members or limits.num_replicas not in (None, len(members)):
        return
    if not _within(market, offers):
        return
    yield replace(
        whole_models(market, grain_size, transport, members),
        reproducible=limits.reproducible,
        insured=limits.insured,
    )


def whole_models(
    market: Market, grain_size: int, transport: TransportName, members: Sequence[tuple[Offer, int]]
) -> Proposal:
    """Each member a replica of one stage, with so many grains of its own."""
    offers = tuple(offer for offer, _ in members)
    return Proposal(
        partition=((0, len(market.profile.layers)),),
        offers=(offers[0],),
        num_replicas=len(members),
        grain_size=grain_size,
        schedule="1f1b",
        ahead=0,
        transport=transport,
        shares=tuple(share for _, share in members),
        replica_offers=offers if len(set(offers)) > 1 else (),
    )


def _common_transports(market: Market, limits: Limits) -> list[TransportName]:
    """That all offers have."""
    each = [transports(market, offer, limits) for offer in market.offers]
    return [transport for transport in each[0] if all(transport in own for own in each)]


def _may_mix(market: Market, limits: Limits, grain_size: int) -> bool:
    """Shares are whole grains, and whole batches are of them."""
    fits = all(grain_size <= market.world.profile_of(offer).largest_grain for offer in market.offers)
    return fits and limits.num_stages in (None, 1) and market.profile.batch_size % grain_size == 0


def _are_connected(market: Market) -> bool:
    """Whether members of any two sites can reach one another."""
    sites = {offer.site for offer in market.offers}
    return all((a, b) in market.world.ways for a in sites for b in sites)


def _grain_s(market: Market, offer: Offer, grain_size: int) -> float:
    """What the whole model takes for a grain."""
    times = stage_times(market.world.profile_of(offer), 0, len(market.profile.layers), grain_size)
    return times.forward_s + times.backward_s


def _shares(num_grains: int, speeds: Sequence[float]) -> list[int]:
    """Whole grains by speed, at least one each: the next goes to whoever has it done first."""
    shares = [1] * len(speeds)
    for _ in range(num_grains - len(speeds)):
        soonest = min(range(len(speeds)), key=lambda at: (shares[at] + 1) / speeds[at])
        shares[soonest] += 1
    return shares


def _within(market: Market, offers: Sequence[Offer]) -> bool:
    counts: defaultdict[str, int] = defaultdict(int)
    for offer in offers:
        counts[offer.name] += 1
    return market.within_quotas(counts)


def _link(market: Market, from_site: str, to_site: str) -> Link:
    way = market.world.ways[from_site, to_site]
    return Link(
        from_site=from_site,
        to_site=to_site,
        bandwidth_bytes_per_s=way.bytes_per_s,
        rtt_s=way.rtt_s,
        stream_bytes_per_s=None if math.isinf(way.stream_bytes_per_s) else way.stream_bytes_per_s,
        source="as it is known here",
        date="",
    )


def _some(points: Sequence[AnyPoint]) -> list[AnyPoint]:
    """Evenly spread over a front, its ends among them."""
    if len(points) <= MOST_EACH:
        return list(points)
    return [points[round(at)] for at in np.linspace(0, len(points) - 1, MOST_EACH)]
