"""What can be had, put together: offers by name, a profile for each, links, prices and quotas."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from zooid import catalog
from zooid.catalog import OWNED, prices_for
from zooid.catalog.price_lookup import place_of
from zooid.coordinator.plans.offer_names import LIMITED, LOCAL, resolve_offer
from zooid.core.errors import CatalogError, InputError, PlanError
from zooid.core.plans.plan import TransportName
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import LeftOut
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import FREE, Prices
from zooid.planner import Market
from zooid.planner.market import is_named
from zooid.planner.reasons import left_out_in_words
from zooid.predictor import Way, World, estimate_profile, ways_from


def offers_named(on: Sequence[str]) -> tuple[Offer, ...]:
    """This machine in one of its ways, or offers of the catalog, by name or by the beginning of their names."""
    found: dict[str, Offer] = {}
    for name in on:
        if name.partition(":")[0] in (LOCAL, LIMITED):
            here = resolve_offer(name)
            found[here.name] = here
            continue
        named = [each for each in catalog.offers() if is_named(each.name, name)]
        if not named:
            first = name.partition(".")[0]
            near = [each.name for each in catalog.offers() if each.name.startswith(first)]
            raise InputError(
                f"no offer is named {name!r}; give local, local:OFFER, limited:OFFER, or one of the catalog: "
                f"{', '.join(near or sorted({each.name.partition('.')[0] for each in catalog.offers()}))}"
            )
        found |= {each.name: each for each in named}
    if not found:
        raise InputError("no offer is given; give one or more, for example local, or aws.lambda")
    return tuple(found.values())


ASSUMED_STARTUP_S = {"function": 10.0, "container": 60.0, "vm": 150.0}
"""Where the catalog does not say it: of a VM what Srifty (§5.4) allows EC2, of the others round figures."""


def market_for(
    offers: Sequence[Offer],
    profiles: Mapping[str, Profile],
    *,
    links: Iterable[Link] = (),
    store_at: str | None = None,
    quotas: Mapping[str, int] | None = None,
    transport: TransportName | None = None,
) -> tuple[Market, list[str]]:
    """Offers with what is known about each, and what had to be assumed, in words.

    `profiles` are by the offers' names, with or without how they are run here; an offer without one gets an estimate
    from the first that was measured. Links are those that are given, of the profiles, and of the catalog, in this
    order. `store_at` is where the store is, for its prices. Offers on which nothing can be planned are left out.
    """
    if not profiles:
        raise InputError("no profile is given; measure the job first")
    left_out: dict[str, list[str]] = {}
    known: dict[str, Profile] = {}
    for offer in offers:
        try:
            known[offer.name] = profile_for(offer, profiles)
        except CatalogError as error:
            left_out.setdefault(str(error), []).append(offer.name)
    ways = ways_from(links_for(offers, [links, *(each.links for each in known.values())]))
    for offer in offers:
        if offer.name in known and not _is_reached(offer, ways, transport):
            left_out.setdefault(_unreached(offer, transport), []).append(offer.name)
    usable = _without(offers, left_out)
    prices = prices_at(usable, store_at)
    for offer in usable:
        for way in ((offer.site, STORE_SITE), (STORE_SITE, offer.site)):
            if way in prices.missing:
                left_out.setdefault(prices.missing[way], []).append(offer.name)
                break
    usable, assumed = _with_startup(_without(offers, left_out))
    is_folder = prices.storage.provider == OWNED and all(offer.platform == LOCAL for offer in usable)
    world = World(known, ways, looks="folder" if is_folder else "store", prices=prices)
    reasons = tuple(LeftOut(offers=tuple(names), reason=reason) for reason, names in left_out.items())
    return Market(tuple(usable), world, dict(quotas or {}), reasons), assumed


def _without(offers: Sequence[Offer], left_out: Mapping[str, Sequence[str]]) -> list[Offer]:
    """The offers that are left, of which there must be some."""
    absent = {name for names in left_out.values() for name in names}
    usable = [offer for offer in offers if offer.name not in absent]
    if not usable:
        raise PlanError(" ".join(left_out_in_words(names, reason) for reason, names in left_out.items()))
    return usable


def _is_reached(offer: Offer, ways: Mapping[tuple[str, str], Way], transport: TransportName | None) -> bool:
    """Whether links are known over which members on this offer can exchange."""
    over_store = (offer.site, STORE_SITE) in ways and (STORE_SITE, offer.site) in ways
    between_members = (offer.site, offer.site) in ways
    if transport is None:
        return over_store or (between_members and offer.accepts_connections)
    return over_store if transport == "store" else between_members


def _unreached(offer: Offer, transport: TransportName | None) -> str:
    missing = {None: ", neither to the store nor between members", "store": " to the store"}
    return (
        f"no link of {offer.site} is known{missing.get(transport, ' between members')}; measure some with `zooid "
        "probe` and give the file with --links"
    )


def _with_startup(offers: Sequence[Offer]) -> tuple[list[Offer], list[str]]:
    """Offers whose start-up is not known get what is usual, and a note says so."""
    kinds = sorted({offer.kind for offer in offers if offer.startup_s is None and offer.kind in ASSUMED_STARTUP_S})
    return (
        [
            structs.replace(offer, startup_s=ASSUMED_STARTUP_S[offer.kind]) if offer.startup_s is None else offer
            for offer in offers
        ],
        [
            f"How long a {kind} takes to start is not known; {ASSUMED_STARTUP_S[kind]:g} s are assumed."
            for kind in kinds
        ],
    )


def profile_for(offer: Offer, profiles: Mapping[str, Profile]) -> Profile:
    """The offer's own profile, or an estimate from the first of all."""
    for name in (offer.name, offer.name.rpartition(":")[2]):
        if name in profiles:
            return profiles[name]
    reference = next(iter(profiles.values()))
    if offer.platform == LOCAL and not offer.name.startswith(f"{LIMITED}:"):
        return reference  # this machine, at whatever price
    return estimate_profile(reference, offer)


def links_for(offers: Sequence[Offer], sources: Iterable[Iterable[Link]]) -> list[Link]:
    """For each direction the links of the first source that has it; the catalog comes last."""
    chosen: list[Link] = []
    sites = {offer.site for offer in offers} | {STORE_SITE}
    catalogued = [link for link in catalog.links() if {link.from_site, link.to_site} <= sites]
    for more in (*sources, catalogued):
        directions = {(link.from_site, link.to_site) for link in chosen}
        chosen += [link for link in more if (link.from_site, link.to_site) not in directions]
    return chosen


def prices_at(offers: Sequence[Offer], store_at: str | None) -> Prices:
    """What members on these offers pay; the store is where all rented members are, if its place is not given."""
    rented = [offer for offer in offers if offer.kind != OWNED]
    if store_at is not None:
        return prices_for(offers, store_at)
    if not rented:
        return FREE
    places = {str(place_of(offer)) for offer in rented}
    if len(places) > 1:
        raise InputError(
            f"members are rented at {', '.join(sorted(places))}, so that it depends on the store's place what requests "
            "and traffic cost; say where it is with --store-at (in Python, store_at=), for example --store-at "
            f"{min(places)}"
        )
    return prices_for(offers, places.pop())
