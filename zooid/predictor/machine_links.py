"""The links of members that share machines: those inside a machine, and those between machines of a site."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from zooid.core.plans.plan import Plan
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.machine_sites import inside_of, is_machine, link_ends, machine_site, outer_site
from zooid.core.resources.offer import Offer
from zooid.predictor.simulation.layout import DirectedLink, DirectedLinks


def member_sites(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The sites of members by replica and stage. Where members share machines, each machine is a site.

    Each machine is filled before the next, as platforms do it. A single row stands for all replicas.
    """
    rows = plan.offer_rows
    if all(offer.machine_members == 1 for offer in plan.offers):
        return tuple(tuple(offer.site for offer in row) for row in rows)
    placed: Counter[str] = Counter()

    def site_of(offer: Offer) -> str:
        if offer.machine_members == 1:
            return offer.site
        number = placed[offer.name] // offer.machine_members
        placed[offer.name] += 1
        return machine_site(offer, number)

    return tuple(
        tuple(site_of(offer) for offer in row) for row in (rows if len(rows) > 1 else rows * plan.num_replicas)
    )


def with_machines(links: DirectedLinks, sites: Iterable[Iterable[str]]) -> DirectedLinks:
    """Return the links with entries for each machine among these sites. Inner links default to those of the site."""
    every = list(dict.fromkeys(site for row in sites for site in row))
    if not any(map(is_machine, every)):
        return links
    pairs = [(source, target) for source in (*every, STORE_SITE) for target in (*every, STORE_SITE)]
    known = dict(links)
    for source, target in pairs:
        between = links.get(link_ends(source, target)) or links.get((outer_site(source), outer_site(target)))
        if between is not None:
            known[source, target] = between
    return known


def link_among(links: DirectedLinks, offer: Offer) -> DirectedLink | None:
    """The best link that two members on an offer may have, inside a machine or between two; None if none is known."""
    between = links.get((offer.site, offer.site))
    inside = links.get((inside_of(offer), inside_of(offer))) if offer.machine_members > 1 else None
    if between is None or inside is None:
        return between or inside
    return _better(between, inside)


def _better(one: DirectedLink, other: DirectedLink) -> DirectedLink:
    faster = max(one, other, key=lambda link: link.bytes_per_s)
    return replace(
        faster,
        rtt_s=min(one.rtt_s, other.rtt_s),
        stream_bytes_per_s=max(one.stream_bytes_per_s, other.stream_bytes_per_s),
        total_bytes_per_s=max(one.total_bytes_per_s, other.total_bytes_per_s),
        cpu_s=min(one.cpu_s, other.cpu_s),
        cpu_s_per_byte=min(one.cpu_s_per_byte, other.cpu_s_per_byte),
    )
