"""From offers and the place of a store to the prices that hold between them.

A place is a provider and one of its regions, written `aws.us-east-1`, or `owned`. What leaves a place is charged by the
provider there; what leaves one's own costs nothing. Between a store and members in its own region traffic is free, as
all providers have it; between members of one region the price between its zones holds, since a region may put them into
any. Another provider is reached through the internet. A price that is not in the tables is an error, never a guess.
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


class Place(NamedTuple):
    """A region of a provider; one's own machines have neither."""

    provider: str
    region: str = ANYWHERE

    @staticmethod
    def parse(text: str) -> "Place":
        """
        >>> Place.parse("aws.us-east-1")
        Place(provider='aws', region='us-east-1')
        """
        provider, dot, region = text.partition(".")
        if not provider or (dot and not region):
            raise PlanError(f"{text!r} is not a place; write PROVIDER.REGION, for example aws.us-east-1, or {OWNED}")
        return Place(provider, region or ANYWHERE)

    @property
    def is_owned(self) -> bool:
        return self.provider == OWNED

    def __str__(self) -> str:
        return self.provider if self.is_owned else f"{self.provider}.{self.region}"


def place_of(offer: Offer) -> Place:
    """Where members on this offer run; its name begins with the provider."""
    return Place(OWNED) if offer.kind == "owned" else Place(offer.name.partition(".")[0], offer.region)


def store_place(url: str, region: str) -> str:
    """The place of a store, as `prices_for` takes it: the URL tells the provider, and one's own folders have no region.

    An S3 URL stands for AWS; of another service that speaks S3, give the place itself.

    >>> store_place("s3://bucket/run-7", "us-east-1"), store_place("file:///home/me/run-7", "")
    ('aws.us-east-1', 'owned')
    """
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        raise PlanError(f"{url!r} does not tell whose store it is; it must begin with one of {', '.join(_SCHEMES)}")
    provider = _SCHEMES[scheme]
    if provider == OWNED:
        return OWNED
    if not region:
        raise PlanError(f"the prices of {url} depend on the region that its bucket is in; say which")
    return f"{provider}.{region}"


def prices_for(offers: Sequence[Offer], store: str = OWNED, data: str | None = None) -> Prices:
    """What members on these offers pay for requests, storage and traffic, with the run's store at one place and the
    data set at another (None: in the run's store).

    A store without a price is refused at once, a way without one when a plan uses it.
    """
    store_at, data_at = Place.parse(store), Place.parse(data or store)
    ends = {offer.site: place_of(offer) for offer in offers} | {STORE_SITE: store_at, DATA_SITE: data_at}
    egress: dict[tuple[str, str], float] = {}
    missing: dict[tuple[str, str], str] = {}
    for from_site, source in ends.items():
        for to_site, target in ends.items():
            between_members = STORE_SITE != from_site != DATA_SITE and STORE_SITE != to_site != DATA_SITE
            try:
                egress[from_site, to_site] = egress_usd_per_gb(source, target, between_members=between_members)
            except PlanError as error:
                missing[from_site, to_site] = str(error)
    return Prices(storage_price(store_at), storage_price(data_at), egress, missing)


def storage_price(place: Place) -> StoragePrice:
    """Of the object store of this provider in this region."""
    if place.is_owned:
        return FREE_STORAGE
    own = [row for row in storage_prices() if row.provider == place.provider]
    for region in (place.region, ANYWHERE):
        if found := [row for row in own if row.region == region]:
            return found[0]
    known = ", ".join(f"{row.provider}.{row.region}" for row in own or storage_prices())
    raise PlanError(
        f"no price is known for an object store at {place}; storage.csv of the catalog has {known}: add a row with "
        f"`provider` {place.provider} and `region` {place.region}, or name one of "
        "those with --store-at (in Python, store_at=)"
    )


def egress_usd_per_gb(source: Place, target: Place, *, between_members: bool = True) -> float:
    """What a GB costs on its way from one place to another; the narrowest row holds."""
    if source.is_owned:
        return 0.0
    if source == target and not between_members:
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
        """Where it goes says more than where it comes from."""
        return target_zones.index(row.target_zone), source_zones.index(row.source_zone)

    return min(rows, key=width).usd_per_gb


def _zones(place: Place, named: set[str]) -> list[str]:
    """What a price list may call this place, narrowest first. `named` are the zones that it does name."""
    continents = {row.continent for row in regions()}
    continent = {(row.provider, row.region): row.continent for row in regions()}.get(place)
    if continent is None and place.region not in named and named & continents:
        raise PlanError(
            f"the price of traffic depends on the continent, and the catalog does not say which one {place} is on; add "
            f"a row with `provider` {place.provider} and `region` {place.region} to regions.csv"
        )
    return [place.region, *([continent] if continent else []), ANYWHERE]
