"""Azure's price list: pages of its Retail Prices API, https://prices.azure.com/api/retail/prices, saved as JSON.

Each item is one price. A machine on demand, its spot price and the same machine with Windows are three items. The list
gives no sizes; they are in `azure_sizes.csv`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from zooid.catalog.importers.azure_sizes import AzureSize, azure_sizes
from zooid.catalog.importers.gpu_catalog_memory import gpu_memory_bytes
from zooid.catalog.importers.imported_prices import ImportedPrices, SkippedRow, Unusable
from zooid.catalog.importers.json_pages import read_saved_items
from zooid.catalog.machine_prices import MachinePrice, MachinePriceList
from zooid.core.records import InvalidValue
from zooid.core.text import quoted

_ADVICE = (
    "pages of https://prices.azure.com/api/retail/prices?$filter=serviceName eq 'Virtual Machines' as the API returns "
    "them: one page, a list of pages, or pages one after another"
)
_WINDOWS = re.compile(r"\bWin(dows)?\b")
"""Some newer products have only `Win`, such as `Virtual Machines NCCadsv5 Srs Win`."""
_CLOUD_SERVICES = re.compile(r"\bCloud ?Services\b")
"""An older service, which has machines of the same names at other prices."""
_REGION = re.compile(r"[a-z0-9]+")


class _AzureItem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of an item that decide whether it is kept."""

    currency_code: str
    retail_price: float
    product_name: str
    sku_name: str
    service_name: str
    unit_of_measure: str
    type: str
    meter_name: str = ""
    arm_region_name: str | None = None
    arm_sku_name: str | None = None
    tier_minimum_units: float = 0.0


@dataclass(frozen=True)
class _ItemPrice:
    """An item that is the price of a machine of known size."""

    number: int
    machine: MachinePrice
    """It has one of the two prices."""

    @property
    def place(self) -> tuple[str, str]:
        return self.machine.region, self.machine.instance_type

    @property
    def is_spot(self) -> bool:
        return self.machine.spot_usd_per_hour is not None

    @property
    def usd_per_hour(self) -> float:
        usd = self.machine.spot_usd_per_hour if self.is_spot else self.machine.usd_per_hour
        assert usd is not None, "every item has one price"
        return usd


def read_azure_prices(file: Path, date: str | None = None) -> ImportedPrices:
    """Read the prices of Azure's machines with Linux. `date` is that of the prices.

    Without `date`, it is the day on which the file was last changed. The line of an item that is left out is its
    number in the file, over all pages, from 1.
    """
    saved = read_saved_items(file, "Items", "price list of Azure", _ADVICE)
    sizes = {size.instance_type: size for size in azure_sizes()}
    left_out: list[SkippedRow] = []
    prices: list[_ItemPrice] = []
    for number, item in enumerate(saved.items, 1):
        try:
            prices.append(_ItemPrice(number, _machine(item, sizes)))
        except Unusable as unusable:
            left_out.append(SkippedRow(number, unusable.reason, unusable.detail))
    prices = _without_repeats(prices, left_out)
    machines = _joined(prices, left_out)
    return ImportedPrices(
        file=str(file),
        prices=MachinePriceList(
            provider="azure",
            source="Azure's Retail Prices API",
            date=date or saved.day,
            machines=tuple(machines),
        ),
        num_rows=len(saved.items),
        num_kept=len(saved.items) - len(left_out),
        rows_left_out=tuple(sorted(left_out, key=lambda row: row.line)),
        spot_left_out=(),
    )


def _machine(content: object, sizes: dict[str, AzureSize]) -> MachinePrice:
    """Return the machine of an item, with the one price that the item gives."""
    try:
        item = msgspec.convert(content, _AzureItem)
    except msgspec.ValidationError as error:
        raise Unusable("it is malformed", quoted(str(error))) from None
    _require_linux_machine(item)
    region = (item.arm_region_name or "").lower()
    if not _REGION.fullmatch(region):
        raise Unusable("it has no usable region", quoted(item.arm_region_name or ""))
    size = sizes.get(item.arm_sku_name or "")
    if size is None:
        raise Unusable("the size of its machine is not known", quoted(item.arm_sku_name or item.sku_name))
    usd = item.retail_price
    if not math.isfinite(usd) or usd <= 0:
        raise Unusable("its price is not a finite number above 0", f"{usd:g}")
    is_spot = item.sku_name.endswith("Spot")
    try:
        return MachinePrice(
            instance_type=size.instance_type,
            region=region,
            vcpus=size.vcpus,
            memory_bytes=size.memory_bytes,
            gpu=size.gpu,
            num_gpus=size.num_gpus,
            gpu_memory_bytes=gpu_memory_bytes(size.gpu),
            usd_per_hour=None if is_spot else usd,
            spot_usd_per_hour=usd if is_spot else None,
        )
    except InvalidValue as error:
        raise Unusable("its price is not plausible", str(error)) from None


def _require_linux_machine(item: _AzureItem) -> None:
    """Raise Unusable unless the item is the hourly price of a machine with Linux, in dollars."""
    if item.service_name != "Virtual Machines":
        raise Unusable("it is of another service", quoted(item.service_name))
    if item.type != "Consumption":
        raise Unusable("it is not a pay-as-you-go price", quoted(item.type))
    if item.currency_code != "USD":
        raise Unusable("its price is not in US dollars", quoted(item.currency_code))
    if item.unit_of_measure != "1 Hour":
        raise Unusable("its price is not for one hour", quoted(item.unit_of_measure))
    if item.tier_minimum_units != 0:
        raise Unusable("its price holds only above a minimum use", f"{item.tier_minimum_units:g}")
    if _WINDOWS.search(item.product_name):
        raise Unusable("it is a machine with Windows")
    if _CLOUD_SERVICES.search(item.product_name):
        raise Unusable("it is a machine of Cloud Services")
    if "Low Priority" in f"{item.sku_name} {item.meter_name}":
        raise Unusable("it is a Low Priority price, which spot prices have replaced")


def _without_repeats(prices: Iterable[_ItemPrice], left_out: list[SkippedRow]) -> list[_ItemPrice]:
    """Keep one of several equal prices of a machine, and none of several that differ."""
    of_place: defaultdict[tuple[tuple[str, str], bool], list[_ItemPrice]] = defaultdict(list)
    for price in prices:
        of_place[price.place, price.is_spot].append(price)
    kept: list[_ItemPrice] = []
    for same in of_place.values():
        if len({price.usd_per_hour for price in same}) > 1:
            left_out += _differing(same)
            continue
        kept.append(same[0])
        first = f"item {same[0].number}"
        left_out += [SkippedRow(price.number, "an earlier item gives the same price", first) for price in same[1:]]
    return kept


def _differing(same: Sequence[_ItemPrice]) -> Iterator[SkippedRow]:
    first = same[0]
    second = next(price for price in same if price.usd_per_hour != first.usd_per_hour)
    for price in same:
        other = second if price.usd_per_hour == first.usd_per_hour else first
        detail = f"{price.usd_per_hour:g} dollars, in item {other.number} {other.usd_per_hour:g}"
        yield SkippedRow(price.number, "another item gives another price for the same machine and region", detail)


def _joined(prices: Iterable[_ItemPrice], left_out: list[SkippedRow]) -> list[MachinePrice]:
    """Join the spot price of a machine with that on demand, in the order of the file."""
    machines: dict[tuple[str, str], MachinePrice] = {}
    spot: list[_ItemPrice] = []
    for price in prices:
        if price.is_spot:
            spot.append(price)
        else:
            machines[price.place] = price.machine
    for price in spot:
        machine = machines.get(price.place)
        if machine is None:
            machines[price.place] = price.machine
        elif machine.usd_per_hour is not None and price.usd_per_hour >= machine.usd_per_hour:
            detail = f"{price.usd_per_hour:g} and {machine.usd_per_hour:g} dollars"
            left_out.append(SkippedRow(price.number, "its spot price is not below that on demand", detail))
        else:
            machines[price.place] = msgspec.structs.replace(machine, spot_usd_per_hour=price.usd_per_hour)
    return list(machines.values())
