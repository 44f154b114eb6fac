"""Google's price list: pages of the SKUs of Compute Engine from its Cloud Billing Catalog API, saved as JSON.

Google prices cores, memory and accelerators apart, for each region, so the price of a machine is a sum:

    vCPUs × price of a core + GiB × price of a GiB of memory + accelerators × price of an accelerator

A4 machines have no prices of cores and memory, because the price of their accelerators is that of the whole. Local
disks are not part of the sums; those that some machines with accelerators always have add about 1 % to their price.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from zooid.catalog.importers.google_hosts import google_hosts
from zooid.catalog.importers.google_machines import GoogleMachine, google_machines
from zooid.catalog.importers.google_sku_parts import CORE, MEMORY, SkuPrice, read_sku
from zooid.catalog.importers.gpu_catalog_memory import gpu_memory_bytes
from zooid.catalog.importers.imported_prices import ImportedPrices, SkippedRow, Unusable
from zooid.catalog.importers.json_pages import read_saved_items
from zooid.catalog.machine_prices import MachinePrice, MachinePriceList
from zooid.core.records import InvalidValue

_ADVICE = (
    "pages of https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus as the API returns them: one page, a "
    "list of pages, or pages one after another"
)
_GIB = 2**30
_WHOLE_IN_GPUS = ("a4-",)
"""Machines whose accelerators' price is that of the whole machine."""


@dataclass(frozen=True)
class _Variant:
    """A machine with a number of accelerators, or with none."""

    machine: GoogleMachine
    gpu: str = ""
    num_gpus: int = 0

    @property
    def amounts(self) -> dict[str, float]:
        """How much of each part the machine has."""
        instance_type = self.machine.instance_type
        amounts: dict[str, float] = {}
        if not instance_type.startswith(_WHOLE_IN_GPUS):
            series = _series(instance_type)
            amounts[f"{series} {CORE}"] = self.machine.vcpus
            amounts[f"{series} {MEMORY}"] = self.machine.memory_bytes / _GIB
        if self.gpu:
            amounts[self.gpu] = self.num_gpus
        return amounts

    @property
    def main_part(self) -> str:
        """The accelerator, or the memory of a machine without one. The machine is sold only where this part is."""
        return list(self.amounts)[-1]


class _Rates:
    """The prices of parts in regions, which SKUs were used, and why others could not be."""

    def __init__(self, skus: Iterable[SkuPrice]) -> None:
        self.used: set[int] = set()
        self.regions: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The regions of each part, without repeats and in the order of the file."""
        self.unused_because: dict[int, tuple[str, str]] = {}
        self._of_place: dict[tuple[str, str, bool], SkuPrice] = {}
        of_place: defaultdict[tuple[str, str, bool], list[SkuPrice]] = defaultdict(list)
        for sku in skus:
            for region in sku.regions:
                of_place[sku.part, region, sku.is_spot].append(sku)
                self.regions[sku.part][region] = None
        for place, same in of_place.items():
            if len({sku.usd for sku in same}) == 1:
                self._of_place[place] = same[0]
                for sku in same[1:]:
                    self.note([sku], "an earlier SKU gives the same price for its regions", f"item {same[0].number}")
            else:
                self.note(same, "another SKU gives another price for the same part and region", place[1])

    def note(self, skus: Iterable[SkuPrice], reason: str, detail: str) -> None:
        """Say why these SKUs could not be used, in case no other price uses them."""
        for sku in skus:
            self.unused_because[sku.number] = (reason, detail)

    def of(self, parts: Iterable[str], region: str, is_spot: bool) -> list[SkuPrice]:
        """Return the SKUs of all these parts, or none if one of them has no price."""
        found = [self._of_place.get((part, region, is_spot)) for part in parts]
        return [sku for sku in found if sku is not None] if None not in found else []


def read_google_skus(file: Path, date: str | None = None) -> ImportedPrices:
    """Compute the prices of Google's machines from those of their parts. `date` is that of the prices.

    Without `date`, it is the day on which the file was last changed. A SKU is kept if the price of a machine uses it.
    The line of a SKU that is left out is its number in the file, over all pages, from 1. A machine that lacks the
    price of a part in a region is not listed there.
    """
    saved = read_saved_items(file, "skus", "list of Google's SKUs", _ADVICE)
    skus: list[SkuPrice] = []
    left_out: list[SkippedRow] = []
    for number, content in enumerate(saved.items, 1):
        try:
            skus.append(read_sku(number, content))
        except Unusable as unusable:
            left_out.append(SkippedRow(number, unusable.reason, unusable.detail))
    rates = _Rates(skus)
    machines = [
        machine
        for variant in _variants()
        for region in rates.regions[variant.main_part]
        if (machine := _machine(variant, region, rates)) is not None
    ]
    for sku in skus:
        if sku.number not in rates.used:
            left_out.append(SkippedRow(sku.number, *rates.unused_because.get(sku.number, _missing(sku))))
    return ImportedPrices(
        file=str(file),
        prices=MachinePriceList(
            provider="gcp",
            source="Google's Cloud Billing Catalog API",
            date=date or saved.day,
            machines=tuple(machines),
        ),
        num_rows=len(saved.items),
        num_kept=len(rates.used),
        rows_left_out=tuple(sorted(left_out, key=lambda row: row.line)),
        spot_left_out=(),
    )


def _variants() -> Iterator[_Variant]:
    fixed = {host.instance_type for host in google_hosts() if host.is_fixed}
    machines = {machine.instance_type: machine for machine in google_machines()}
    yield from (_Variant(machine) for machine in machines.values() if machine.instance_type not in fixed)
    for host in google_hosts():
        yield _Variant(machines[host.instance_type], host.accelerator, host.num_gpus)


def _machine(variant: _Variant, region: str, rates: _Rates) -> MachinePrice | None:
    """Return the machine with the prices that it has in a region; None if it has none."""
    on_demand = _priced(variant, region, rates, is_spot=False)
    spot = _priced(variant, region, rates, is_spot=True)
    if on_demand is not None and spot is not None:
        usd, spot_usd = on_demand.machine.usd_per_hour, spot.machine.spot_usd_per_hour
        assert usd is not None, "it is a price on demand"
        assert spot_usd is not None, "it is a spot price"
        if spot_usd >= usd:
            rates.note(spot.skus, "the spot price of its machines is not below that on demand", region)
            spot = None
        else:
            rates.used |= {sku.number for sku in (*on_demand.skus, *spot.skus)}
            return msgspec.structs.replace(on_demand.machine, spot_usd_per_hour=spot_usd)
    priced = on_demand or spot
    if priced is None:
        return None
    rates.used |= {sku.number for sku in priced.skus}
    return priced.machine


@dataclass(frozen=True)
class _PricedMachine:
    machine: MachinePrice
    """It has one of the two prices."""
    skus: Sequence[SkuPrice]


def _priced(variant: _Variant, region: str, rates: _Rates, is_spot: bool) -> _PricedMachine | None:
    """Return the machine with the sum of the prices of its parts; None if one of them is missing."""
    skus = rates.of(variant.amounts, region, is_spot)
    if not skus:
        return None
    usd = _sum(skus, variant.amounts)
    try:
        machine = MachinePrice(
            instance_type=variant.machine.instance_type,
            region=region,
            vcpus=variant.machine.vcpus,
            memory_bytes=variant.machine.memory_bytes,
            gpu=variant.gpu,
            num_gpus=variant.num_gpus,
            gpu_memory_bytes=gpu_memory_bytes(variant.gpu),
            usd_per_hour=None if is_spot else usd,
            spot_usd_per_hour=usd if is_spot else None,
        )
    except InvalidValue as error:
        rates.note(skus, "the price of its machines is not plausible", str(error))
        return None
    return _PricedMachine(machine, skus)


def _sum(skus: Iterable[SkuPrice], amounts: Mapping[str, float]) -> float:
    return sum(sku.usd * amounts[sku.part] for sku in skus)


def _series(instance_type: str) -> str:
    """Return the machine series as the descriptions of SKUs tell them apart.

    >>> _series("n1-standard-8"), _series("a3-megagpu-8g")
    ('n1', 'a3-megagpu')
    """
    series, kind, _ = instance_type.split("-")
    return f"{series}-{kind}" if series == "a3" else series


def _missing(sku: SkuPrice) -> tuple[str, str]:
    return "no machine can be priced with it, because another of its parts has no price", sku.part
