"""The rows of the catalog: offers, prices and regions.

Prices are dollars for one unit, which the field's name gives. Price lists print them for a thousand requests, for a
million starts or in cents. A price beyond what any provider charges is therefore rejected, and the message names the
unit.
"""

import math
from typing import Literal

from msgspec import structs

from zooid.core.records import Record, require, require_at_least, require_positive
from zooid.core.units import SECONDS_PER_HOUR

OfferKind = Literal["function", "container", "vm", "owned"]
Market = Literal["on_demand", "spot", "owned"]

OWN_PLATFORMS = ("ssh", "slurm", "ray", "kubernetes")
"""Platforms of the user's own machines and clusters. Their offers are named after them, as in `ssh.gpu1`."""
RENTED_PLATFORMS = ("aws_lambda", "aws_microvm", "azure_container", "azure_job", "cloud_run", "skypilot")
"""Platforms that bill members while they run. Their offers are in the catalog, named after the provider."""

MAX_USD_PER_GB = 0.5
"""The most expensive route costs about 0.25 dollars; the cheapest one, given in cents, would be 1."""
MAX_USD_PER_PUT = 1e-4
"""Twice what the coldest storage charges; hot storage charges 0.000005, which is 0.005 for a thousand."""
MAX_USD_PER_GET = 1e-5
"""Hot storage charges 0.0000004, which is 0.0004 for a thousand."""
MAX_USD_PER_GB_MONTH = 1.0
"""Hot storage charges about 0.02."""


def require_price(name: str, usd: float, max_usd: float, unit: str, whose: str = "") -> None:
    """Reject a price that is negative, or so high that it must be in another unit than `unit`."""
    given = f"`{name}`{f' of {whose}' if whose else ''} is {usd}"
    require(math.isfinite(usd), f"{given}; it must be a finite number")
    require(usd >= 0, f"{given}; it must be at least 0")
    require(usd <= max_usd, f"{given}; it must be at most {max_usd:g}: give {unit}")


class Offer(Record, frozen=True, kw_only=True):
    """A resource that can be rented or is owned, with a price, a size and limits. One member runs on one offer."""

    name: str
    """Unique dotted name, provider first: `aws.lambda.1769`."""
    platform: str
    """The folder under `zooid/platforms` that starts members on this offer."""
    kind: OfferKind
    market: Market
    region: str
    """The provider's name for the region, or `anywhere` if the price does not depend on it."""
    site: str
    """The site of members on this offer. Links and egress prices are between sites."""
    vcpus: float
    memory_bytes: int
    usd_per_hour: float
    """Price of the whole member while it runs."""
    gpu: str = ""
    """Model of the accelerator; empty if there is none."""
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    """Memory of one accelerator."""
    usd_per_start: float = 0.0
    """Price of one start, such as a function's request."""
    billing_grain_s: float = 1.0
    """Running time is rounded up to a multiple of this."""
    billing_minimum_s: float = 0.0
    """Minimum time that is charged for a start."""
    max_members: int | None = None
    """How many members can run on it at the same time, as on one's own machine; None if there is no such limit."""
    machine_members: int = 1
    """How many members share one machine. A machine gets so many before the next one gets any."""
    lifetime_s: float | None = None
    """Time after which the platform ends the member; None if it does not."""
    interruptions_per_hour: float | None = None
    """Expected number of times per hour that the platform takes a member away. None if it is unknown, which counts as 0
    unless the offer is a spot offer."""
    accepts_connections: bool = True
    """Whether other members can open a connection to it."""
    has_shared_memory: bool = True
    """Whether a member has /dev/shm, through which worker processes that read data hand over samples."""
    startup_s: float | None = None
    """Time from launch to the member's first instruction; None if unknown."""
    bandwidth_bytes_per_s: float | None = None
    """Bandwidth of its network interface in each direction; None if unknown."""
    is_retired: bool = False
    """Whether the provider no longer rents it. It is planned with only if its whole name is given."""
    sized_by: str = ""
    """The sized offer from whose sizes a planner chooses, beginning with this one; empty if this size is fixed."""
    source: str
    """Source of the figures."""
    date: str
    """Date of the figures, `YYYY-MM` or `YYYY-MM-DD`."""

    def __post_init__(self) -> None:
        require(bool(self.name), "`name` must not be empty")
        sizes = ("vcpus", "memory_bytes", "billing_grain_s", "lifetime_s", "bandwidth_bytes_per_s")
        require_positive(self, *sizes, of=self.name)
        require(
            (self.num_gpus > 0) == bool(self.gpu),
            f"`gpu` of {self.name} is {self.gpu!r} and `num_gpus` is {self.num_gpus}; give both or neither",
        )
        amounts = ("usd_per_hour", "usd_per_start", "billing_minimum_s", "num_gpus", "gpu_memory_bytes", "startup_s")
        require_at_least(0, self, *amounts, "interruptions_per_hour", of=self.name)
        require_at_least(1, self, "machine_members", of=self.name)

    @property
    def member_bytes(self) -> int:
        """The memory in which the stage of a member must fit: that of its GPU, if it has one of a known size."""
        return min(self.memory_bytes, self.gpu_memory_bytes) if self.gpu_memory_bytes else self.memory_bytes

    @property
    def is_elsewhere(self) -> bool:
        """Whether members run on other machines than this one."""
        return self.platform in OWN_PLATFORMS or self.is_rented

    @property
    def is_rented(self) -> bool:
        """Whether members cost money while they run, so that none is started only to measure it unless asked for."""
        return self.platform in RENTED_PLATFORMS

    @property
    def keeps_processes(self) -> bool:
        """Whether the platform uses the process of a member that has ended for the next one."""
        return self.platform == "aws_lambda"

    def emulated(self) -> "Offer":
        """Return the offer as a rehearsal uses it: members run on this machine, and nothing is rented."""
        return structs.replace(self, platform="local") if self.is_rented else self

    @property
    def losses_per_s(self) -> float | None:
        """Rate at which a member is lost. None if it is unknown, as for spot offers without a rate."""
        if self.interruptions_per_hour is None:
            return None if self.market == "spot" else 0.0
        return self.interruptions_per_hour / SECONDS_PER_HOUR


class DeviceScore(Record, frozen=True, kw_only=True):
    """Peak speed and memory of a kind of device, from which the times of unmeasured offers are estimated."""

    device: str
    """`vcpu`, or the model of an accelerator as offers name it."""
    flops_per_s: float
    """Floating-point operations per second in float32, without tensor cores."""
    bf16_flops_per_s: float | None = None
    """The same in bf16 with tensor cores, for matrices that are not sparse; None if it has no such cores."""
    memory_bytes: int | None = None
    """Memory of one accelerator, as it is sold; None for a vCPU."""
    memory_bytes_per_s: float | None = None
    """Peak bandwidth of that memory."""
    source: str
    date: str

    def __post_init__(self) -> None:
        sizes = ("flops_per_s", "bf16_flops_per_s", "memory_bytes", "memory_bytes_per_s")
        require_positive(self, *sizes, of=self.device)


class EgressPrice(Record, frozen=True, kw_only=True):
    """Price of traffic from one zone to another; the most specific matching row applies."""

    provider: str
    source_zone: str
    """A region or continent of the provider, or `anywhere`."""
    target_zone: str
    """A region, continent or provider, `internet`, `same_region`, or `anywhere`."""
    usd_per_gb: float
    source: str
    date: str

    def __post_init__(self) -> None:
        require_price("usd_per_gb", self.usd_per_gb, MAX_USD_PER_GB, "dollars, not cents, for one GB, not for a TB")


class StoragePrice(Record, frozen=True, kw_only=True):
    """Prices of an object store for requests and for stored bytes."""

    provider: str
    service: str
    region: str
    usd_per_put: float
    usd_per_get: float
    usd_per_gb_month: float
    usd_per_list: float | None = None
    """Price of one page of a listing; None if it costs as much as a put. Deletions are free everywhere."""
    source: str
    date: str

    def __post_init__(self) -> None:
        unit = "dollars for one request, not for a thousand or ten thousand"
        require_price("usd_per_put", self.usd_per_put, MAX_USD_PER_PUT, unit)
        require_price("usd_per_get", self.usd_per_get, MAX_USD_PER_GET, unit)
        if self.usd_per_list is not None:
            require_price("usd_per_list", self.usd_per_list, MAX_USD_PER_PUT, unit)
        month = "dollars, not cents, for one GB stored for a month, not for a year or a TB"
        require_price("usd_per_gb_month", self.usd_per_gb_month, MAX_USD_PER_GB_MONTH, month)


class Region(Record, frozen=True, kw_only=True):
    """The continent of a provider's region, on which the price of traffic depends."""

    provider: str
    region: str
    continent: str
    """`us` (North America), `eu`, `asia` or `oce`, as in the price lists of traffic."""
    source: str
    date: str
