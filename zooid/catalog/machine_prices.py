"""Prices of whole machines, as price lists of clouds give them: a machine, a region, and what an hour costs.

A list may give one price for each zone of a region. On demand, these are equal; spot prices differ.
"""

import functools
from collections.abc import Iterator
from typing import Literal

from zooid.core.records import FileRecord, Record, require, require_at_least, require_positive
from zooid.core.resources.offer import Offer, require_price


class MachinePrice(Record, frozen=True, kw_only=True):
    """The prices of a machine in a zone."""

    instance_type: str
    region: str
    zone: str = ""
    """Empty if the price is that of a whole region."""
    vcpus: float
    memory_bytes: int
    gpu: str = ""
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    """Memory of one accelerator; 0 if the list does not tell."""
    usd_per_hour: float | None = None
    """Price on demand; None if there is none."""
    spot_usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        require(bool(self.instance_type), "`instance_type` must not be empty")
        require(bool(self.region), "`region` must not be empty")
        require_positive(self, "vcpus", "memory_bytes", "usd_per_hour", "spot_usd_per_hour")
        require_at_least(0, self, "num_gpus", "gpu_memory_bytes")
        require((self.num_gpus > 0) == bool(self.gpu), "give `gpu` and `num_gpus`, or neither")
        require(
            self.usd_per_hour is not None or self.spot_usd_per_hour is not None,
            "give `usd_per_hour`, `spot_usd_per_hour`, or both",
        )
        for usd in (self.usd_per_hour, self.spot_usd_per_hour):
            if usd is not None:
                unit = "dollars, not cents, for an hour of the whole machine, not for a month"
                require_price("usd_per_hour", usd, self._max_usd_per_hour, unit, self.instance_type)

    @property
    def _max_usd_per_hour(self) -> float:
        return 20.0 * self.num_gpus + 1.0 * self.vcpus + 0.1 * self.memory_bytes / 1e9


class MachinePriceList(FileRecord, frozen=True, kw_only=True, tag="price_list"):
    """Prices of one provider, from one source and of one date."""

    provider: str
    source: str
    date: str
    """Date of the prices, `YYYY-MM-DD`."""
    machines: tuple[MachinePrice, ...]

    def offers(self) -> Iterator[Offer]:
        """Return one offer on demand for each machine and region, and a spot offer for each zone."""
        on_demand: set[tuple[str, str, str, int]] = set()
        for machine in self.machines:
            identity = (machine.region, machine.instance_type, machine.gpu, machine.num_gpus)
            name = f"{self.provider}.{slug(machine.region)}.{slug(self._machine_name(machine))}"
            if machine.usd_per_hour is not None and identity not in on_demand:
                on_demand.add(identity)
                yield self._offer(machine, name, "on_demand", machine.usd_per_hour)
            if machine.spot_usd_per_hour is not None:
                zone = f".{slug(machine.zone)}" if machine.zone else ""
                yield self._offer(machine, f"{name}.spot{zone}", "spot", machine.spot_usd_per_hour)

    def _machine_name(self, machine: MachinePrice) -> str:
        """Name accelerators that can be added to a machine, as Google's can."""
        is_added = machine.gpu and self.provider == "gcp" and machine.instance_type.startswith("n1-")
        return f"{machine.instance_type}.{machine.num_gpus}x{machine.gpu}" if is_added else machine.instance_type

    def _offer(
        self, machine: MachinePrice, name: str, market: Literal["on_demand", "spot"], usd_per_hour: float
    ) -> Offer:
        return Offer(
            name=name,
            platform="skypilot",
            kind="vm",
            market=market,
            region=machine.region,
            site=f"{self.provider}.{slug(machine.region)}",
            vcpus=machine.vcpus,
            memory_bytes=machine.memory_bytes,
            usd_per_hour=usd_per_hour,
            gpu=machine.gpu,
            num_gpus=machine.num_gpus,
            gpu_memory_bytes=machine.gpu_memory_bytes,
            source=self.source,
            date=self.date,
        )


@functools.cache
def slug(text: str) -> str:
    """Return a text as part of a dotted name.

    >>> slug("Standard_NC6s_v3"), slug("Denmark, DK, EU"), slug("p3.8xlarge"), slug(", CA, NA")
    ('standard_nc6s_v3', 'denmark-dk-eu', 'p3.8xlarge', 'ca-na')
    """
    plain = "".join(character if character.isalnum() or character in "._-" else " " for character in text.lower())
    return "-".join(plain.split())
