"""Plans whose members differ, from the optimisers of three papers.

A market becomes the problem of each optimiser, and its answers become plans: stages of different sizes (FuncPipe),
replicas of different types (Srifty), and replicas at several sites (clouds and continents). Each optimiser is exact for
its paper's closed form. The simulator then decides between their answers.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import networkx as nx
from msgspec import structs

from zooid.core.plans.plan import Limits, Plan, TransportName
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.planner.families import transports
from zooid.planner.fleets import AllReduceOfVm, ComputePoint, FleetProblem, Hire, VmType, fleet_front
from zooid.planner.market import Market
from zooid.planner.member_sizes import fitted, missing_bytes
from zooid.planner.mixed_stages import by_site, mixed_stages, spread
from zooid.planner.sites import SiteOffer, SiteProblem, egress_between, site_front
from zooid.predictor import stage_memory_bytes, stage_times
from zooid.predictor.equations import streaming_bound_s
from zooid.schedule.share_rule import balanced_shares

Members = Sequence[tuple[Offer, int]]
"""The offer of each replica of one stage, and the number of grains that it computes."""

_TRANSPORTS: tuple[TransportName, ...] = ("store", "tcp")
"""Transports that are tried if none is required."""
MAX_COMBINATIONS = 500
"""Offers are combined for a required number of replicas only if there are at most this many combinations."""


def mixed_plans(market: Market, limits: Limits, grain_sizes: Sequence[int], search_s: float) -> Iterator[Plan]:
    """Plans whose members differ, with these grain sizes. They are of one site, unless replicas are required.

    `search_s` is the time limit of each optimiser. Its unproven answers become plans, too.
    """
    for grain_size in grain_sizes:
        yield from mixed_stages(market, limits, grain_size, search_s)
        for transport, part in _mixable(market, limits, grain_size):
            if limits.num_replicas is not None:
                replicas = _combinations(part, limits.num_replicas, grain_size, transport)
            else:
                replicas = _mixed_fleets(part, limits, grain_size, transport, search_s)
            yield from _whole(market, limits, grain_size, transport, replicas)


def site_plans(market: Market, limits: Limits, grain_sizes: Sequence[int], search_s: float) -> Iterator[Plan]:
    """Plans with replicas at several sites, any two of which are linked. Otherwise as `mixed_plans`."""
    for grain_size in grain_sizes:
        for transport, part in _mixable(market, limits, grain_size):
            if transport != "store":
                replicas = _mixed_sites(part, limits, grain_size, search_s)
                yield from _whole(market, limits, grain_size, transport, replicas)


def _whole(
    market: Market, limits: Limits, grain_size: int, transport: TransportName, replicas: Iterable[Members]
) -> Iterator[Plan]:
    for members in replicas:
        plan = whole_models(market, grain_size, transport, members, limits)
        if plan.num_members <= limits.max_members and market.within_quotas(plan.member_offers):
            yield plan


def _mixable(market: Market, limits: Limits, grain_size: int) -> Iterator[tuple[TransportName, Market]]:
    """For each transport, the offers on which replicas of one stage may be mixed: several, with whole grains."""
    if limits.num_stages not in (None, 1) or market.profile.batch_size % grain_size != 0:
        return
    for transport in _TRANSPORTS if limits.transport is None else [limits.transport]:
        offers = [
            offer
            for offer in market.offers
            if grain_size <= market.world.profile_of(offer).largest_grain
            and transport in transports(market, offer, limits)
        ]
        if len(offers) > 1:
            yield transport, market.of(offers)


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


def _combinations(market: Market, num_replicas: int, grain_size: int, transport: TransportName) -> Iterator[Members]:
    """All combinations of different offers for a required number of replicas, if these are not too many."""
    all_offers = _sized_for_all(market, market.offers, grain_size)
    num_grains, num_offers = market.profile.batch_size // grain_size, len(all_offers)
    too_many = math.comb(num_replicas + num_offers - 1, num_offers - 1) > MAX_COMBINATIONS
    if too_many or num_replicas > num_grains:
        return
    for offers in itertools.combinations_with_replacement(all_offers, num_replicas):
        sites = {offer.site for offer in offers}
        if len(set(offers)) > 1 and (transport == "store" or _are_connected(market, sites)):
            yield shared_by_speed(market, offers, grain_size)


def _mixed_fleets(
    market: Market, limits: Limits, grain_size: int, transport: TransportName, search_s: float
) -> Iterator[Members]:
    """Replicas on different offers of one site (Srifty)."""
    for same_site in by_site(market.offers):
        offers = holding(market, same_site, grain_size)
        if len(offers) > 1:
            problem, all_reduce_s = fleet_problem(market, offers, limits.max_members, grain_size, transport)
            front = fleet_front(problem, all_reduce_s=all_reduce_s, limit_s=search_s)
            for fleet in spread([fleet for fleet in front.fleets if len(fleet.hires) > 1]):
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


def connected_sites(market: Market) -> list[set[str]]:
    """The largest groups of sites any two of which are linked. Each has a site whose offers are not elsewhere."""
    linked: nx.Graph[str] = nx.Graph()
    sites = dict.fromkeys(offer.site for offer in market.offers if _are_connected(market, [offer.site]))
    linked.add_edges_from(pair for pair in itertools.combinations(sites, 2) if _are_connected(market, pair))
    own = {offer.site for offer in market.home.offers}
    return sorted((set(group) for group in nx.find_cliques(linked) if own & set(group)), key=sorted)


def _mixed_sites(market: Market, limits: Limits, grain_size: int, search_s: float) -> Iterator[Members]:
    """Replicas at several sites (clouds and continents)."""
    profile, world = market.profile, market.world
    sites = list(dict.fromkeys(offer.site for offer in market.offers))
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
    for choice in spread(site_front(problem, limit_s=search_s).choices):
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


def _are_connected(market: Market, sites: Collection[str]) -> bool:
    """Whether there is a link between any two of these sites, and inside each."""
    return all(ends in market.world.links for ends in itertools.product(sites, repeat=2))


def _grain_s(market: Market, offer: Offer, grain_size: int) -> float:
    """Time of the whole model for a grain."""
    times = stage_times(market.world.profile_of(offer), 0, len(market.profile.layers), grain_size)
    return times.forward_s + times.backward_s


def shared_by_speed(market: Market, offers: Sequence[Offer], grain_size: int) -> Members:
    """Give each member as many grains as fit its speed, so that the last one ends first."""
    paces = [_grain_s(market, offer, grain_size) for offer in offers]
    shares = balanced_shares(paces, market.profile.batch_size // grain_size)
    return list(zip(offers, shares, strict=True))
