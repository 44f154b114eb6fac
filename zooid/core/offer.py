"""What can be rented or is owned, and what it costs: the rows of the catalog."""

from typing import Literal

from zooid.core.records import Record, require

OfferKind = Literal["function", "container", "vm", "owned"]
Market = Literal["on_demand", "spot", "owned"]


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
        require(self.usd_per_gb >= 0, f"`usd_per_gb` is {self.usd_per_gb}; it must be at least 0")


class StoragePrice(Record, frozen=True, kw_only=True):
    """What an object store charges for requests and for what lies in it."""

    provider: str
    service: str
    region: str
    usd_per_put: float
    usd_per_get: float
    usd_per_gb_month: float
    source: str
    date: str

    def __post_init__(self) -> None:
        for name in ("usd_per_put", "usd_per_get", "usd_per_gb_month"):
            require(getattr(self, name) >= 0, f"`{name}` is {getattr(self, name)}; it must be at least 0")
