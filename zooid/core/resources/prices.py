"""Prices of stores and of traffic between sites; the prices of members are in their offers."""

from collections.abc import Mapping
from dataclasses import dataclass

from zooid.core.errors import PlanError
from zooid.core.resources.offer import StoragePrice

DATA_SITE = "data"
"""Site name of the data set, which often lies in the run's own store."""

FREE_STORAGE = StoragePrice(
    provider="owned",
    service="folder",
    region="anywhere",
    usd_per_put=0.0,
    usd_per_get=0.0,
    usd_per_gb_month=0.0,
    source="one's own disk or server",
    date="2024-01",
)


@dataclass(frozen=True)
class Prices:
    """Prices of the run's store, of the data set's store, and of traffic between sites."""

    storage: StoragePrice
    data_storage: StoragePrice
    egress: Mapping[tuple[str, str], float] | None
    """Dollars per GB from one site to another, STORE_SITE and DATA_SITE included; None if all traffic is free."""
    missing: Mapping[tuple[str, str], str]
    """Links without a price, with the reason and what to do. They matter only to plans that use them."""

    @property
    def store_at(self) -> str:
        """Location of the run's store, such as `aws.us-east-1` or `owned`; empty if no prices were asked for."""
        storage = self.storage
        if self.egress is None:
            return ""
        return storage.provider if storage == FREE_STORAGE else f"{storage.provider}.{storage.region}"

    def usd_per_gb(self, from_site: str, to_site: str) -> float:
        """Return the price of traffic over a link; raise PlanError if it is unknown."""
        if self.egress is None:
            return 0.0
        link = (from_site, to_site)
        if link not in self.egress:
            not_looked_up = (
                f"no price was looked up for traffic from {from_site} to {to_site}; give the offers of both sites to "
                "zooid.catalog.prices_for"
            )
            raise PlanError(self.missing.get(link, not_looked_up))
        return self.egress[link]


FREE = Prices(storage=FREE_STORAGE, data_storage=FREE_STORAGE, egress=None, missing={})
"""Prices of one's own machines with one's own store."""
