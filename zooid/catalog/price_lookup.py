"""Prices of storage and traffic for offers and a store.

A location is a provider and one of its regions, written `aws.us-east-1`, or `owned`. A provider charges for traffic
that leaves it; traffic that leaves one's own machines is free. Traffic between a store and members in its region is
free with all providers. Members of one region pay the price between its zones, since they may be in any of them.
Another provider is reached through the internet. A price that is not in the tables is an error, never a guess.
"""

from collections.abc import Sequence
from typing import NamedTuple

from zooid.catalog.shipped_tables import egress_prices, regions, storage_prices
from zooid.core.errors import PlanError
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.offer import EgressPrice, Offer, StoragePrice
from zooid.core.resources.prices import DATA_SITE, FREE_STORAGE, Prices

OWNED = "owned"
ANYWHERE = "anywhere"
INTERNET = "internet"
SAME_REGION = "same_region"
_SCHEMES = {"file": OWNED, "memory": OWNED, "s3": "aws", "gs": "gcp", "az": "azure"}


class Location(NamedTuple):
    """A region of a provider; `owned` is the provider of one's own machines."""

    provider: str
    region: str = ANYWHERE

    @staticmethod
    def parse(text: str) -> "Location":
        """
        >>> Location.parse("aws.us-east-1")
        Location(provider='aws', region='us-east-1')
        """
        provider, dot, region = text.partition(".")
        if not provider or (dot and not region):
            raise PlanError(f"{text!r} is not a location; write PROVIDER.REGION, for example aws.us-east-1, or {OWNED}")
        return Location(provider, region or ANYWHERE)

    @property
    def is_owned(self) -> bool:
        return self.provider == OWNED

    def __str__(self) -> str:
        return self.provider if self.is_owned else f"{self.provider}.{self.region}"


def location_of(offer: Offer) -> Location:
    """The location of members on an offer, whose name begins with the provider."""
    return Location(OWNED) if offer.kind == "owned" else Location(offer.name.partition(".")[0], offer.region)


def store_location(url: str, region: str) -> str:
    """The location of a store for `prices_for`: its URL names the provider, and one's own folders have no region.

    An S3 URL means AWS; for another service with the same protocol, give the location itself.

    >>> store_location("s3://bucket/run-7", "us-east-1"), store_location("file:///home/me/run-7", "")
    ('aws.us-east-1', 'owned')
    """
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        raise PlanError(f"{url!r} does not name a provider; it must begin with one of {', '.join(_SCHEMES)}")
    provider = _SCHEMES[scheme]
    if provider == OWNED:
        return OWNED
    if not region:
        raise PlanError(f"the prices of {url} depend on the region of its bucket; give the region")
    return f"{provider}.{region}"


def prices_for(offers: Sequence[Offer], store: str = OWNED, data: str | None = None) -> Prices:
    """Prices of requests, storage and traffic for members on these offers.

    `store` is the location of the run's store, `data` that of the data set (None: in the run's store). A store without
    a price is rejected at once, a link without one when a plan uses it.
    """
    store_at, data_at = Location.parse(store), Location.parse(data or store)
    locations = {offer.site: location_of(offer) for offer in offers} | {STORE_SITE: store_at, DATA_SITE: data_at}
    egress: dict[tuple[str, str], float] = {}
    missing: dict[tuple[str, str], str] = {}
    for from_site, source in locations.items():
        for to_site, target in locations.items():
            between_members = STORE_SITE != from_site != DATA_SITE and STORE_SITE != to_site != DATA_SITE
            try:
                egress[from_site, to_site] = egress_usd_per_gb(source, target, between_members=between_members)
            except PlanError as error:
                missing[from_site, to_site] = str(error)
    return Prices(storage_price(store_at), storage_price(data_at), egress, missing)


def storage_price(location: Location) -> StoragePrice:
    """The price of the object store at a location."""
    if location.is_owned:
        return FREE_STORAGE
    rows = [row for row in storage_prices() if row.provider == location.provider]
    for region in (location.region, ANYWHERE):
        if matches := [row for row in rows if row.region == region]:
            return matches[0]
    known = ", ".join(f"{row.provider}.{row.region}" for row in rows or storage_prices())
    raise PlanError(
        f"no price is known for an object store at {location}; storage.csv of the catalog has {known}: add a row with "
        f"`provider` {location.provider} and `region` {location.region}, or name one of "
        "those with --store-at (in Python, store_at=)"
    )


def egress_usd_per_gb(source: Location, target: Location, *, between_members: bool = True) -> float:
    """The price of a GB from one location to another; the narrowest matching row applies."""
    if source.is_owned or (source == target and not between_members):
        return 0.0
    rows = [row for row in egress_prices() if row.provider == source.provider]
    target_zones = [target.provider, INTERNET, ANYWHERE]
    if source == target:
        target_zones = [SAME_REGION, ANYWHERE]
    elif source.provider == target.provider:
        target_zones = _zones(target, {row.target_zone for row in rows})
    rows = [row for row in rows if row.target_zone in target_zones]
    source_zones = _zones(source, {row.source_zone for row in rows})
    rows = [row for row in rows if row.source_zone in source_zones]
    if not rows:
        raise PlanError(
            f"no price is known for traffic from {source} to {target}; add a row with `provider` {source.provider}, "
            f"`source_zone` {source_zones[0]} and `target_zone` {target_zones[0]} to egress.csv of the catalog"
        )

    def width(row: EgressPrice) -> tuple[int, int]:
        """How wide a row is; the target matters more than the source."""
        return target_zones.index(row.target_zone), source_zones.index(row.source_zone)

    return min(rows, key=width).usd_per_gb


def _zones(location: Location, named: set[str]) -> list[str]:
    """Names of a location in a price list, narrowest first; `named` are the zones in the list."""
    continents = {row.continent for row in regions()}
    continent = {(row.provider, row.region): row.continent for row in regions()}.get(location)
    if continent is None and location.region not in named and named & continents:
        raise PlanError(
            f"the price of traffic depends on the continent, and the catalog does not know that of {location}; add "
            f"a row with `provider` {location.provider} and `region` {location.region} to regions.csv"
        )
    return [location.region, *([continent] if continent else []), ANYWHERE]
