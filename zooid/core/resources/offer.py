"""What can be rented or is owned, and what it costs: the rows of the catalog.

Prices are dollars for one unit, as the field's name says. Price lists print them for a thousand requests, for a million
starts or in cents; so a price beyond what anybody charges is refused, with the unit that is meant.
"""

import math
from typing import Literal

from zooid.core.records import Record, require

OfferKind = Literal["function", "container", "vm", "owned"]
Market = Literal["on_demand", "spot", "owned"]

MOST_USD_PER_GB = 0.5
"""Of traffic; the dearest route costs about 0.25, and the cheapest in cents would be 1."""
MOST_USD_PER_PUT = 1e-4
"""Twice what the coldest storage charges; hot storage charges 0.000005, which is 0.005 for a thousand."""
MOST_USD_PER_GET = 1e-5
"""Hot storage charges 0.0000004, which is 0.0004 for a thousand."""
MOST_USD_PER_GB_MONTH = 1.0
"""Hot storage charges about 0.02."""


def require_price(name: str, usd: float, most_usd: float, unit: str, whose: str = "") -> None:
    """Refuse a price that is below 0 or so high that it must be in another unit; `unit` says which one is meant."""
    given = f"`{name}`{f' of {whose}' if whose else ''} is {usd}"
    require(math.isfinite(usd), f"{given}; it must be a finite number")
    require(usd >= 0, f"{given}; it must be at least 0")
    require(usd <= most_usd, f"{given}; it must be at most {most_usd:g}: give {unit}")


class Offer(Record, frozen=True, kw_only=True):
    """Something rentable (or owned) with a price, a size and limits; one member runs on one offer."""

    name: str
    """Unique and dotted, widest first: `aws.lambda.1769`."""
    platform: str
    """The folder under `zooid/platforms` that starts members on it."""
    kind: OfferKind
    market: Market
    region: str
    """The provider's own region name, or `anywhere` where the price does not depend on it."""
    site: str
    """Members of one site are close to one another; links and egress are priced between sites."""
    vcpus: float
    memory_bytes: int
    usd_per_hour: float
    """Price of the whole member while it runs."""
    gpu: str = ""
    """Model of the accelerator, empty for none."""
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    """Of one accelerator."""
    usd_per_start: float = 0.0
    """Charged once for every start (a function's request)."""
    billing_grain_s: float = 1.0
    """Running time is rounded up to a multiple of this."""
    billing_minimum_s: float = 0.0
    """Least time charged for a start."""
    lifetime_s: float | None = None
    """The platform ends the member after this; None where it does not."""
    accepts_connections: bool = True
    """Whether other members can open a connection to it."""
    startup_s: float | None = None
    """From launch to the member's first instruction; None where unknown."""
    bandwidth_bytes_per_s: float | None = None
    """Of its network interface, each way; None where unknown."""
    source: str
    """Where the figures come from."""
    date: str
    """The day the figures held, `YYYY-MM` or `YYYY-MM-DD`."""

    def __post_init__(self) -> None:
        require(bool(self.name), "`name` must not be empty")
        require(self.vcpus > 0, f"`vcpus` of {self.name} is {self.vcpus}; it must be above 0")
        require(self.memory_bytes > 0, f"`memory_bytes` of {self.name} is {self.memory_bytes}; it must be above 0")
        require(self.usd_per_hour >= 0, f"`usd_per_hour` of {self.name} is {self.usd_per_hour}; it must be at least 0")
        require(self.usd_per_start >= 0, f"`usd_per_start` of {self.name} must be at least 0")
        require(self.billing_grain_s > 0, f"`billing_grain_s` of {self.name} must be above 0")
        require(self.billing_minimum_s >= 0, f"`billing_minimum_s` of {self.name} must be at least 0")
        require(
            (self.num_gpus > 0) == bool(self.gpu), f"`gpu` and `num_gpus` of {self.name} must be given together or not"
        )
        require(self.num_gpus >= 0, f"`num_gpus` of {self.name} is {self.num_gpus}; it must be at least 0")
        require(self.gpu_memory_bytes >= 0, f"`gpu_memory_bytes` of {self.name} must be at least 0")
        require(self.startup_s is None or self.startup_s >= 0, f"`startup_s` of {self.name} must be at least 0")
        for field in ("lifetime_s", "bandwidth_bytes_per_s"):
            value = getattr(self, field)
            require(value is None or value > 0, f"`{field}` of {self.name} must be above 0")


class DeviceScore(Record, frozen=True, kw_only=True):
    """How fast a kind of device is at best: what estimates for offers that were not measured rest on."""

    device: str
    """`vcpu`, or the model of an accelerator as offers name it."""
    flops_per_s: float
    """Floating-point operations a second, in float32."""
    source: str
    date: str

    def __post_init__(self) -> None:
        require(self.flops_per_s > 0, f"`flops_per_s` of {self.device} must be above 0")


class EgressPrice(Record, frozen=True, kw_only=True):
    """What a byte costs that leaves one place for another; the narrowest matching row holds."""

    provider: str
    source_zone: str
    """A region or continent of the provider, or `anywhere`."""
    target_zone: str
    """A region, continent or provider, `internet`, `same_region`, or `anywhere`."""
    usd_per_gb: float
    source: str
    date: str

    def __post_init__(self) -> None:
        require_price("usd_per_gb", self.usd_per_gb, MOST_USD_PER_GB, "dollars, not cents, for one GB, not for a TB")


class StoragePrice(Record, frozen=True, kw_only=True):
    """What an object store charges for requests and for what lies in it."""

    provider: str
    service: str
    region: str
    usd_per_put: float
    usd_per_get: float
    usd_per_gb_month: float
    usd_per_list: float | None = None
    """Of one page of a listing; None where that is charged as a put. Deletions are free everywhere."""
    source: str
    date: str

    def __post_init__(self) -> None:
        one = "dollars for one request, not for a thousand or ten thousand"
        require_price("usd_per_put", self.usd_per_put, MOST_USD_PER_PUT, one)
        require_price("usd_per_get", self.usd_per_get, MOST_USD_PER_GET, one)
        if self.usd_per_list is not None:
            require_price("usd_per_list", self.usd_per_list, MOST_USD_PER_PUT, one)
        month = "dollars, not cents, for one GB that lies there for a month, not for a year or a TB"
        require_price("usd_per_gb_month", self.usd_per_gb_month, MOST_USD_PER_GB_MONTH, month)


class Region(Record, frozen=True, kw_only=True):
    """Where a provider's region lies: prices of traffic are by continent."""

    provider: str
    region: str
    continent: str
    """`us` (North America), `eu`, `asia` or `oce`, as the price lists of traffic divide the world."""
    source: str
    date: str
