"""What can be had, put together: offers by name, a profile for each, links, prices and quotas."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from zooid import catalog
from zooid.catalog import OWNED, prices_for
from zooid.catalog.prices import place_of
from zooid.coordinator.offers import LIMITED, LOCAL, resolve_offer
from zooid.core.errors import InputError, PlanError
from zooid.core.link import STORE_SITE, Link
from zooid.core.offer import Offer
from zooid.core.prices import FREE, Prices
from zooid.core.profile import Profile
from zooid.planner import Market
from zooid.planner.market import is_named
from zooid.predictor import World, estimate_profile, ways_from


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
) -> tuple[Market, list[str]]:
    """Offers with what is known about each, and which were left out, in words.

    `profiles` are by the offers' names, with or without how they are run here; an offer without one gets an estimate
    from the first that was measured. Links are those that are given, of the profiles, and of the catalog, in this
    order. `store_at` is where the store is, for its prices.
    """
    if not profiles:
        raise InputError("no profile is given; measure the job first")
    reference = next(iter(profiles.values()))
    known = {offer.name: _profile_of(offer, profiles, reference) for offer in offers}
    chosen = _links(offers, known, links)
    ways = ways_from(chosen)
    usable, notes = [], []
    for offer in offers:
        if ((offer.site, STORE_SITE) in ways and (STORE_SITE, offer.site) in ways) or (offer.site, offer.site) in ways:
            usable.append(offer)
        else:
            notes.append(
                f"{offer.name} is left out: no link of {offer.site} is known, neither to the store nor between "
                "members; give a file of links"
            )
    if not usable:
        raise PlanError("; ".join(notes))
    usable, assumed = _with_startup(usable)
    notes += assumed
    prices = _prices(usable, store_at)
    is_folder = prices.storage.provider == OWNED and all(offer.platform == LOCAL for offer in usable)
    world = World(known, ways, looks="folder" if is_folder else "store", prices=prices)
    return Market(tuple(usable), world, dict(quotas or {})), notes


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


def _profile_of(offer: Offer, profiles: Mapping[str, Profile], reference: Profile) -> Profile:
    for name in (offer.name, offer.name.rpartition(":")[2]):
        if name in profiles:
            return profiles[name]
    if offer.platform == LOCAL and not offer.name.startswith(f"{LIMITED}:"):
        return reference  # this machine, at whatever price
    return estimate_profile(reference, offer)


def _links(offers: Sequence[Offer], profiles: Mapping[str, Profile], given: Iterable[Link]) -> list[Link]:
    chosen = list(given)
    sites = {offer.site for offer in offers} | {STORE_SITE}
    catalogued = [link for link in catalog.links() if {link.from_site, link.to_site} <= sites]
    for more in (*(profile.links for profile in profiles.values()), catalogued):
        directions = {(link.from_site, link.to_site) for link in chosen}
        chosen += [link for link in more if (link.from_site, link.to_site) not in directions]
    return chosen


def _prices(offers: Sequence[Offer], store_at: str | None) -> Prices:
    rented = [offer for offer in offers if offer.kind != OWNED]
    if store_at is not None:
        return prices_for(offers, store_at)
    if not rented:
        return FREE
    places = {str(place_of(offer)) for offer in rented}
    if len(places) > 1:
        raise InputError(
            f"members are rented at {', '.join(sorted(places))}, so that it depends on the store's place what requests "
            "and traffic cost; say where it is, for example aws.us-east-1"
        )
    return prices_for(offers, places.pop())
