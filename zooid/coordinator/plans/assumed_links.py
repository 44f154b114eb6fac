"""Links that nobody has measured, assumed to be as fast as the network interfaces of their members.

A link belongs to a site, and an interface to an offer. So offers whose links are assumed get sites of their own, one
for each bandwidth: `gcp.us-central1.10gbit`. What was measured at their site stays as it was.
"""

from collections.abc import Sequence

from msgspec import structs

from zooid.catalog.price_lookup import location_of
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.predictor import DirectedLink

_GBIT_PER_S = 1e9 / 8
_STORE_RTT_S = 0.04
"""FuncPipe, section 3.3: a request from a function to the store of its region takes up to 40 ms."""
_REGION_RTT_S = 0.0007
"""Clouds and continents, Table 5: 0.65 to 0.72 ms between two machines of a region."""
_SOURCE = "assumed: as fast as the slower of the two interfaces"


def with_assumed_links(
    offers: Sequence[Offer], known: Sequence[Link], directed: dict[tuple[str, str], DirectedLink]
) -> tuple[list[Offer], list[Link], list[str]]:
    """Assume links of offers with a known interface, whose members reach one another or the store by no known link.

    Returns the offers, some at sites of their own, the links that were added, and notes that say so. `known` are the
    links that `directed` was made of.
    """
    assumed = {offer.name for offer in offers if _lacks_links(offer, directed)}
    if not assumed:
        return list(offers), [], []
    placed = [structs.replace(offer, site=_own_site(offer)) if offer.name in assumed else offer for offer in offers]
    before = {new.site: old for new, old in zip(placed, offers, strict=True)}
    measured: dict[tuple[str, str], list[Link]] = {}
    for link in known:
        measured.setdefault((link.from_site, link.to_site), []).append(link)
    added: list[Link] = []
    ends = {new.site: new for new in placed}
    for source in (*ends, STORE_SITE):
        for target in (*ends, STORE_SITE):
            members = [ends[site] for site in (source, target) if site in ends]
            if not any(member.name in assumed for member in members):
                continue
            pair = tuple(before[site].site if site in before else site for site in (source, target))
            copies = measured.get((pair[0], pair[1]), [])
            added += [structs.replace(link, from_site=source, to_site=target) for link in copies]
            guess = None if copies else _assumed(source, target, members)
            added += [] if guess is None else [guess]
    slowest, fastest = _range_in_gbit([offer for offer in offers if offer.name in assumed])
    rates = f"{slowest:g} Gbit/s" if slowest == fastest else f"{slowest:g} to {fastest:g} Gbit/s"
    note = (
        f"The links of {len(assumed)} offers were never measured; they are assumed to be as fast as their network "
        f"interfaces, {rates}. Measure those that matter with `zooid probe`, and give the file with --links."
    )
    return placed, added, [note]


def _lacks_links(offer: Offer, directed: dict[tuple[str, str], DirectedLink]) -> bool:
    if offer.bandwidth_bytes_per_s is None or not offer.is_rented:
        return False
    needed = [(offer.site, STORE_SITE), (STORE_SITE, offer.site)]
    if offer.accepts_connections:
        needed.append((offer.site, offer.site))
    return any(ends not in directed for ends in needed)


def _own_site(offer: Offer) -> str:
    assert offer.bandwidth_bytes_per_s is not None
    return f"{offer.site}.{offer.bandwidth_bytes_per_s / _GBIT_PER_S:g}gbit"


def _assumed(source: str, target: str, members: Sequence[Offer]) -> Link | None:
    """The link between members of one region, or between a member and the store of its region; None for any other."""
    interfaces = [member.bandwidth_bytes_per_s for member in members]
    known = [rate for rate in interfaces if rate is not None]
    if len(known) < len(interfaces) or len({location_of(member) for member in members}) > 1:
        return None
    is_store = STORE_SITE in (source, target)
    if not is_store and not all(member.accepts_connections for member in members):
        return None
    return Link(
        from_site=source,
        to_site=target,
        bandwidth_bytes_per_s=min(known),
        rtt_s=_STORE_RTT_S if is_store else _REGION_RTT_S,
        source=_SOURCE,
        date=max(member.date for member in members),
    )


def _range_in_gbit(offers: Sequence[Offer]) -> tuple[float, float]:
    rates = [offer.bandwidth_bytes_per_s / _GBIT_PER_S for offer in offers if offer.bandwidth_bytes_per_s is not None]
    return min(rates), max(rates)
