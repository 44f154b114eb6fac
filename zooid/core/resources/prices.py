"""What stores and the ways between sites charge, as far as a search has to know it; members' prices are in offers."""

from collections.abc import Mapping
from dataclasses import dataclass

from zooid.core.errors import PlanError
from zooid.core.resources.offer import StoragePrice

DATA_SITE = "data"
"""Where the data set lies, as the end of a way; often, but not always, in the run's own store."""

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
    """Of the run's store, of the one that the data set lies in, and of traffic between sites."""

    storage: StoragePrice
    data_storage: StoragePrice
    egress: Mapping[tuple[str, str], float] | None
    """Dollars for a GB, by the sites it leaves and reaches; STORE_SITE and DATA_SITE are sites, too. None where nothing
    is charged anywhere."""
    missing: Mapping[tuple[str, str], str]
    """Of ways that have no price: why, and what to do about it. They matter only to plans that use them."""

    @property
    def store_at(self) -> str:
        """Place of the run's store, as `aws.us-east-1` or `owned`; empty where nobody asked for prices."""
        storage = self.storage
        if self.egress is None:
            return ""
        return storage.provider if storage == FREE_STORAGE else f"{storage.provider}.{storage.region}"

    def usd_per_gb(self, from_site: str, to_site: str) -> float:
        """Of traffic; PlanError where nobody knows."""
        if self.egress is None:
            return 0.0
        link = (from_site, to_site)
        if link not in self.egress:
            unasked = (
                f"no price was looked up for traffic from {from_site} to {to_site}; give the offers of both sites to "
                "zooid.catalog.prices_for"
            )
            raise PlanError(self.missing.get(link, unasked))
        return self.egress[link]


FREE = Prices(storage=FREE_STORAGE, data_storage=FREE_STORAGE, egress=None, missing={})
"""One's own machines, with a folder or server of one's own for a store."""
