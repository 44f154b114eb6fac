"""The market of a search: offers by name, a profile for each, links, prices and quotas."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from msgspec import structs

from zooid import catalog
from zooid.catalog import OWNED, prices_for
from zooid.catalog.price_lookup import location_of
from zooid.coordinator.plans.assumed_links import with_assumed_links
from zooid.coordinator.plans.machine_pools import pooled
from zooid.coordinator.plans.offer_names import LIMITED, LOCAL, offers_to_start
from zooid.core.errors import CatalogError, InputError, PlanError
from zooid.core.plans.plan import TransportName
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import LeftOut
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import OWN_PLATFORMS, Offer
from zooid.core.resources.prices import FREE, Prices
from zooid.planner import Market
from zooid.planner.dominance import without_dominated
from zooid.planner.market import is_named
from zooid.planner.reasons import left_out_in_words
from zooid.predictor import DirectedLink, World, directed_links, estimate_profile
from zooid.predictor.machine_links import link_among

EVERY = "all"
"""The name of all offers of the catalog that can still be rented."""


def offers_named(on: Sequence[str]) -> tuple[Offer, ...]:
    """Return the named offers: forms of this machine, or offers of the catalog by name, by a prefix of it, or `all`."""
    by_name: dict[str, Offer] = {}
    for name in on:
        if name == EVERY:
            rented = [offer for offer in catalog.offers() if not offer.is_retired]
            by_name |= {offer.name: offer for offer in rented}
            continue
        if name.partition(":")[0] in (LOCAL, LIMITED) or name.partition(".")[0] in OWN_PLATFORMS:
            by_name |= {own.name: own for own in offers_to_start([name])}
            continue
        named = _catalogued(name)
        if not named:
            provider = name.partition(".")[0]
            similar = [offer.name for offer in catalog.offers() if offer.name.startswith(provider)]
            providers = sorted({offer.name.partition(".")[0] for offer in catalog.offers()})
            raise InputError(
                f"no offer is named {name!r}; give local, local:OFFER, limited:OFFER, or one of the catalog: "
                f"{', '.join(similar or providers)}"
            )
        by_name |= {offer.name: offer for offer in named}
    if not by_name:
        raise InputError("no offer is given; give one or more, for example local, or aws.lambda")
    return tuple(pooled(by_name.values()))


def _catalogued(name: str) -> list[Offer]:
    """The offers of the catalog that a name, or the beginning of one, means. A named size stays as it is.

    Offers that the provider no longer rents are meant by their whole names only.
    """
    sized = catalog.sized_offer(name)
    if sized is None or sized.name == name:
        named = [offer for offer in catalog.offers() if is_named(offer.name, name)]
        return [offer for offer in named if offer.name == name or not offer.is_retired]
    try:
        return [catalog.offer(name)]
    except CatalogError as error:
        raise InputError(str(error)) from error


ASSUMED_STARTUP_S = {"function": 10.0, "container": 60.0, "vm": 150.0}
"""Start-up times if the catalog has none: for a VM what Srifty (§5.4) allows EC2, for the others round figures."""


@dataclass(frozen=True)
class _Judged:
    """Offers with everything that is known about running the job on each, wherever the store is."""

    usable: list[Offer]
    left_out: dict[str, list[str]]
    """Names of offers on which nothing can be planned, by the reason."""
    known: dict[str, Profile]
    links: Mapping[tuple[str, str], DirectedLink]
    profiles: Mapping[str, Profile]
    notes: list[str]
    """Assumptions, in words."""
    assumed: tuple[Link, ...]
    """Links that nobody has measured."""

    def market(self, offers: Sequence[Offer], prices: Prices, quotas: Mapping[str, int]) -> Market:
        """Return the market of some of these offers, at the prices of one store."""
        is_folder = prices.storage.provider == OWNED and all(offer.platform == LOCAL for offer in offers)
        world = World(
            self.known,
            self.links,
            looks="folder" if is_folder else "store",
            prices=prices,
            estimate=lambda offer: profile_for(offer, self.profiles),
        )
        return Market(tuple(offers), world, quotas)

    def reasons(self) -> tuple[LeftOut, ...]:
        return tuple(LeftOut(offers=tuple(names), reason=reason) for reason, names in self.left_out.items())


class MarketOptions(TypedDict, total=False):
    """What the user may say about a market; all of it may be left out."""

    links: Iterable[Link]
    """Links that count more than those of the profiles and of the catalog."""
    store_at: str | None
    """Location of the store, for its prices."""
    quotas: Mapping[str, int] | None
    transport: TransportName | None


def market_for(
    offers: Sequence[Offer],
    profiles: Mapping[str, Profile],
    **how: Unpack[MarketOptions],
) -> tuple[Market, list[str]]:
    """Return the market of these offers, and the assumptions that it makes, in words.

    `profiles` are by offer name, with or without `local:` or `limited:`. An offer without a profile gets an estimate
    from the first one. Links come from `links`, the profiles and the catalog, in this order. `store_at` is the location
    of the store for its prices. Offers on which nothing can be planned are left out.
    """
    judged = _judge(offers, profiles, how.get("links", ()), how.get("transport"), assumes_links=False)
    return _market_of(judged, how.get("store_at"), how.get("quotas") or {}), judged.notes


def _market_of(judged: _Judged, store_at: str | None, quotas: Mapping[str, int]) -> Market:
    """Return the only market of all offers."""
    prices = prices_at(judged.usable, store_at)
    for name, reason in _unpriced(judged.usable, prices).items():
        judged.left_out.setdefault(reason, []).append(name)
    market = judged.market(_without(judged.usable, judged.left_out), prices, quotas)
    return replace(market, left_out=judged.reasons())


def markets_for(
    offers: Sequence[Offer],
    profiles: Mapping[str, Profile],
    **how: Unpack[MarketOptions],
) -> tuple[list[Market], list[str], tuple[Link, ...]]:
    """Return a market for each location at which the store may be, with its assumptions, in words and as links.

    Each has the offers of its location, and those elsewhere that are linked to them. With `store_at`, or if all rented
    offers are at one location, there is one market. Links are assumed where nobody has measured them. Otherwise as
    `market_for`.
    """
    store_at, quotas = how.get("store_at"), how.get("quotas") or {}
    judged = _judge(offers, profiles, how.get("links", ()), how.get("transport"), assumes_links=True)
    locations = dict.fromkeys(str(location_of(offer)) for offer in judged.usable if offer.kind != OWNED)
    if store_at is not None or len(locations) <= 1:
        return [without_dominated(_market_of(judged, store_at, quotas))], judged.notes, judged.assumed
    markets: list[Market] = []
    unpriced: dict[str, str] = {}
    for location in locations:
        around = [offer for offer in judged.usable if _is_around(offer, location, judged)]
        try:
            prices = prices_for(around, location)
        except PlanError as error:
            unpriced |= {offer.name: str(error) for offer in around}
            continue
        missing = _unpriced(around, prices)
        unpriced |= missing
        usable = [offer for offer in around if offer.name not in missing]
        elsewhere = frozenset(offer.name for offer in usable if str(location_of(offer)) != location)
        if len(elsewhere) < len(usable):
            own = {name: quota for name, quota in quotas.items() if _names_any(name, usable)}
            markets.append(replace(judged.market(usable, prices, own), elsewhere=elsewhere))
    planned = {offer.name for market in markets for offer in market.offers}
    for name, reason in unpriced.items():
        if name not in planned:
            judged.left_out.setdefault(reason, []).append(name)
    usable = _without(judged.usable, judged.left_out)
    for name in quotas:
        if not _names_any(name, usable):
            offered = ", ".join(offer.name for offer in usable)
            raise PlanError(f"a quota is given for {name!r}, but the offers are {offered}; name one")
    markets[0] = replace(markets[0], left_out=judged.reasons())
    note = "The store is planned where members are; --store-at fixes its location."
    return list(map(without_dominated, markets)), [*judged.notes, note], judged.assumed


def _names_any(name: str, offers: Sequence[Offer]) -> bool:
    return any(is_named(offer.name, name) for offer in offers)


def _is_around(offer: Offer, location: str, judged: _Judged) -> bool:
    """Whether an offer is at this location of the store, or linked to one that is."""
    if str(location_of(offer)) == location:
        return True
    sites = {other.site for other in judged.usable if str(location_of(other)) == location}
    return any((offer.site, site) in judged.links and (site, offer.site) in judged.links for site in sites)


def _judge(
    offers: Sequence[Offer],
    profiles: Mapping[str, Profile],
    links: Iterable[Link],
    transport: TransportName | None,
    *,
    assumes_links: bool,
) -> _Judged:
    """Find out on which offers something can be planned, wherever the store is."""
    if not profiles:
        raise InputError("no profile is given; measure the job first")
    left_out: dict[str, list[str]] = {}
    known: dict[str, Profile] = {}
    for offer in offers:
        try:
            known[offer.name] = profile_for(offer, profiles)
        except CatalogError as error:
            left_out.setdefault(str(error), []).append(offer.name)
    measured = links_for(offers, [links, *(profile.links for profile in known.values())])
    placed, assumed, notes = list(offers), list[Link](), list[str]()
    directed = directed_links(measured)
    if assumes_links:
        placed, assumed, notes = with_assumed_links(offers, measured, directed)
        directed = directed_links([*measured, *assumed])
    for offer in placed:
        if offer.name in known and not _is_reached(offer, directed, transport):
            left_out.setdefault(_unreached(offer, transport), []).append(offer.name)
    usable, of_starts = _with_startup(_without(placed, left_out))
    return _Judged(usable, left_out, known, directed, profiles, [*of_starts, *notes], tuple(assumed))


def _unpriced(offers: Sequence[Offer], prices: Prices) -> dict[str, str]:
    """Return why nothing can be planned on these offers, by the names of those whose traffic has no price."""
    found: dict[str, str] = {}
    for offer in offers:
        for link in ((offer.site, STORE_SITE), (STORE_SITE, offer.site)):
            if link in prices.missing:
                found.setdefault(offer.name, prices.missing[link])
    return found


def _without(offers: Sequence[Offer], left_out: Mapping[str, Sequence[str]]) -> list[Offer]:
    """Return the remaining offers; raise PlanError if there are none."""
    absent = {name for names in left_out.values() for name in names}
    usable = [offer for offer in offers if offer.name not in absent]
    if not usable:
        raise PlanError(" ".join(left_out_in_words(names, reason) for reason, names in left_out.items()))
    return usable


def _is_reached(offer: Offer, links: Mapping[tuple[str, str], DirectedLink], transport: TransportName | None) -> bool:
    """Whether links are known over which members on this offer can exchange messages."""
    over_store = (offer.site, STORE_SITE) in links and (STORE_SITE, offer.site) in links
    between_members = link_among(links, offer) is not None
    if transport is None:
        return over_store or (between_members and offer.accepts_connections)
    return over_store if transport == "store" else between_members


def _unreached(offer: Offer, transport: TransportName | None) -> str:
    missing = {None: ", neither to the store nor between members", "store": " to the store"}
    return (
        f"no link of {offer.site} is known{missing.get(transport, ' between members')}; measure links with `zooid "
        "probe` and give the file with --links"
    )


def _with_startup(offers: Sequence[Offer]) -> tuple[list[Offer], list[str]]:
    """Give offers with an unknown start-up time the usual one, and return notes that say so."""
    kinds = sorted({offer.kind for offer in offers if offer.startup_s is None and offer.kind in ASSUMED_STARTUP_S})
    notes = [f"The start-up time of a {kind} is unknown; {ASSUMED_STARTUP_S[kind]:g} s are assumed." for kind in kinds]
    known = [
        structs.replace(offer, startup_s=ASSUMED_STARTUP_S[offer.kind]) if offer.startup_s is None else offer
        for offer in offers
    ]
    return known, notes


def profile_for(offer: Offer, profiles: Mapping[str, Profile]) -> Profile:
    """Return the offer's own profile, or an estimate: from the nearest size of the same offer, or the first profile."""
    for name in (offer.name, offer.name.rpartition(":")[2]):
        if name in profiles:
            return profiles[name]
    sized = catalog.sized_offer(offer.name)
    if sized is not None:
        measured = [name for name, profile in profiles.items() if not profile.is_estimate]
        sizes = [catalog.offer(name) for name in measured if catalog.sized_offer(name) is sized]
        if sizes:
            nearest = min(sizes, key=lambda size: abs(math.log(size.vcpus / offer.vcpus)))
            return estimate_profile(profiles[nearest.name], offer, nearest)
    reference = next(iter(profiles.values()))
    if offer.platform == LOCAL and not offer.name.startswith(f"{LIMITED}:"):
        return reference  # this machine, at whatever price
    return estimate_profile(reference, offer)


def links_for(offers: Sequence[Offer], sources: Iterable[Iterable[Link]]) -> list[Link]:
    """For each pair of sites, return the links of the first source that has any; the catalog comes last."""
    chosen: list[Link] = []
    sites = {offer.site for offer in offers} | {STORE_SITE}
    catalogued = [link for link in catalog.links() if {link.from_site, link.to_site} <= sites]
    for source in (*sources, catalogued):
        known_pairs = {(link.from_site, link.to_site) for link in chosen}
        chosen += [link for link in source if (link.from_site, link.to_site) not in known_pairs]
    return chosen


def prices_at(offers: Sequence[Offer], store_at: str | None) -> Prices:
    """Return the prices for members on these offers; by default the store is where all rented members are."""
    rented = [offer for offer in offers if offer.kind != OWNED]
    if store_at is not None:
        return prices_for(offers, store_at)
    if not rented:
        return FREE
    locations = {str(location_of(offer)) for offer in rented}
    if len(locations) > 1:
        raise InputError(
            f"members are rented at {', '.join(sorted(locations))}, so the prices of requests and traffic depend on "
            "the location of the store; give it with --store-at (in Python, store_at=), for example --store-at "
            f"{min(locations)}"
        )
    return prices_for(offers, locations.pop())
