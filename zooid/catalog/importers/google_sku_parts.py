"""What one of Google's SKUs prices: a core, a GiB of memory or an accelerator, told by its description.

A description is such as `N1 Predefined Instance Core running in Americas`, `Spot Preemptible A2 Instance Ram running in
Iowa` or `Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Tokyo`. The whole part before the place must
be known, since many SKUs differ from the usual ones by a word.
"""

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

from zooid.catalog.importers.imported_prices import Unusable
from zooid.core.text import quoted

CORE = "core"
MEMORY = "memory"

_SERIES = {
    "N1 Predefined Instance": "n1",
    "N2 Instance": "n2",
    "E2 Instance": "e2",
    "C3 Instance": "c3",
    "A2 Instance": "a2",
    "A3 Instance": "a3-highgpu",
    "A3Plus Instance": "a3-megagpu",
    "A3Ultra Instance": "a3-ultragpu",
    "G2 Instance": "g2",
    "G4 Instance": "g4",
}
_GPUS = {
    "Nvidia Tesla P4 GPU": "P4",
    "Nvidia Tesla P100 GPU": "P100",
    "Nvidia Tesla V100 GPU": "V100",
    "Nvidia Tesla T4 GPU": "T4",
    "Nvidia Tesla A100 GPU": "A100",
    "Nvidia Tesla A100 80GB GPU": "A100-80GB",
    "Nvidia L4 GPU": "L4",
    "Nvidia H100 80GB GPU": "H100",
    # Three names of one accelerator, which differ by region.
    "Nvidia H100 80GB Mega GPU": "H100-MEGA",
    "Nvidia H100 Mega 80GB GPU": "H100-MEGA",
    "Nvidia H100 80GB Plus GPU": "H100-MEGA",
    "H200 141GB GPU": "H200",
    "A4 Nvidia B200 (1 gpu slice)": "B200",
    "RTX 6000 96GB": "RTXPRO6000",
}
_HOUR, _GIB_HOUR = "h", "GiBy.h"
_PARTS = {
    **{f"{name} Core".lower(): (f"{series} {CORE}", _HOUR) for name, series in _SERIES.items()},
    **{f"{name} Ram".lower(): (f"{series} {MEMORY}", _GIB_HOUR) for name, series in _SERIES.items()},
    **{name.lower(): (gpu, _HOUR) for name, gpu in _GPUS.items()},
}
"""The part that a description names, and the unit in which it is priced."""

_OTHER_USES = {
    "commitment": "it is the price of a commitment",
    "custom": "it is a part of custom machines",
    "sole tenancy": "it is a part of machines of sole tenancy",
    "dws": "it is a part of machines of the Dynamic Workload Scheduler, which run for a set time",
    "reserved": "it is a part of reserved machines",
    "calendar mode": "it is a part of reserved machines",
    "premium": "it is a surcharge",
    "virtual workstation": "it is a part of virtual workstations",
    "tpu": "members compute on NVIDIA's GPUs and on processors only",
}
"""Words of descriptions, and why their SKUs are not used."""
_SPOT_BEGINNING = re.compile(r"\A(spot )?preemptible ")
_SPOT_ENDING = re.compile(r" attached to (spot )?preemptible vms\Z")
_REGION = re.compile(r"[a-z0-9-]+")


class _Category(msgspec.Struct, frozen=True, rename="camel"):
    resource_family: str
    usage_type: str


class _Money(msgspec.Struct, frozen=True, rename="camel"):
    currency_code: str
    units: Annotated[str, msgspec.Meta(pattern=r"\A-?[0-9]{1,9}\Z")] = "0"
    nanos: Annotated[int, msgspec.Meta(gt=-(10**9), lt=10**9)] = 0

    @property
    def amount(self) -> float:
        return int(self.units) + self.nanos / 1e9


class _TieredRate(msgspec.Struct, frozen=True, rename="camel"):
    unit_price: _Money
    start_usage_amount: float = 0.0


class _PricingExpression(msgspec.Struct, frozen=True, rename="camel"):
    usage_unit: str
    tiered_rates: tuple[_TieredRate, ...]


class _PricingInfo(msgspec.Struct, frozen=True, rename="camel"):
    pricing_expression: _PricingExpression


class _Sku(msgspec.Struct, frozen=True, rename="camel"):
    description: str
    category: _Category
    service_regions: tuple[str, ...]
    pricing_info: tuple[_PricingInfo, ...]


@dataclass(frozen=True)
class SkuPrice:
    """A SKU that prices a part of machines."""

    number: int
    part: str
    """An accelerator, or the cores or the memory of a machine series, such as `n1 core`."""
    is_spot: bool
    regions: tuple[str, ...]
    usd: float
    """Price of a core, a GiB or an accelerator for an hour."""


def read_sku(number: int, content: object) -> SkuPrice:
    """Return what a SKU prices, or raise Unusable."""
    try:
        sku = msgspec.convert(content, _Sku)
    except msgspec.ValidationError as error:
        raise Unusable("it is malformed", quoted(str(error))) from None
    part, unit, is_spot = _part(sku)
    regions = tuple(dict.fromkeys(sku.service_regions))
    strange = [region for region in regions if not _REGION.fullmatch(region)]
    if strange or not regions:
        raise Unusable("it has no usable region", quoted(strange[0]) if strange else "")
    return SkuPrice(number=number, part=part, is_spot=is_spot, regions=regions, usd=_usd(sku, unit))


def _part(sku: _Sku) -> tuple[str, str, bool]:
    """Return the part that is priced, its unit, and whether its price is that of spot machines."""
    if sku.category.resource_family != "Compute":
        raise Unusable("it is of another product", quoted(sku.category.resource_family))
    usage_type = sku.category.usage_type
    if usage_type.startswith("Commit"):
        raise Unusable(_OTHER_USES["commitment"], quoted(usage_type))
    if usage_type not in ("OnDemand", "Preemptible"):
        raise Unusable("it is neither a price on demand nor a spot price", quoted(usage_type))
    description = sku.description.lower()
    for words, reason in _OTHER_USES.items():
        if words in description:
            raise Unusable(reason, quoted(sku.description))
    priced, _, place = description.partition(" running in ")
    plain = _SPOT_ENDING.sub("", _SPOT_BEGINNING.sub("", priced))
    if plain not in _PARTS or not place:
        raise Unusable("its machine series or accelerator is not known", quoted(sku.description))
    # Google calls the spot price of B200 a price on demand, so the description counts as well.
    return *_PARTS[plain], usage_type == "Preemptible" or plain != priced


def _usd(sku: _Sku, unit: str) -> float:
    if not sku.pricing_info:
        raise Unusable("it has no price")
    # The entries are in the order of time.
    expression = sku.pricing_info[-1].pricing_expression
    if expression.usage_unit != unit:
        raise Unusable("its price is for another unit", f"{quoted(expression.usage_unit)}, not {unit}")
    if not expression.tiered_rates:
        raise Unusable("it has no price")
    rate = expression.tiered_rates[0]
    if len(expression.tiered_rates) > 1 or rate.start_usage_amount != 0:
        raise Unusable("its price depends on how much is used")
    if rate.unit_price.currency_code != "USD":
        raise Unusable("its price is not in US dollars", quoted(rate.unit_price.currency_code))
    usd = rate.unit_price.amount
    if usd <= 0:
        raise Unusable("its price is not above 0", f"{usd:g}")
    return usd
