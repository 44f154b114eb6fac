"""Products of the price list of Amazon EC2, and which of them are a plain Linux machine on demand.

A machine has dozens of products, which differ by operating system, software, tenancy and reservation. One of them is
what a plain Linux machine is billed as. Capacity Blocks, which are paid for in advance, are listed at 0 dollars an
hour.
"""

import re
from functools import lru_cache

import msgspec

from zooid.catalog.importers.aws_gpus import gpus_of_machine
from zooid.catalog.importers.imported_prices import Unusable
from zooid.catalog.machine_prices import MachinePrice
from zooid.core.records import InvalidValue
from zooid.core.text import quoted

ON_DEMAND = "OnDemand"
NOT_ON_DEMAND = "it is not on demand"
_NOT_PLAIN_LINUX = "it is not for Linux without licences"
_GIB = 2**30
_VCPUS = re.compile(r"[0-9]{1,6}")
_MEMORY = re.compile(r"([0-9]{1,3}(?:,[0-9]{3}){1,3}|[0-9]{1,9})(\.[0-9]{1,6})? GiB")
_PRICE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")


class AwsAttributes(
    msgspec.Struct,
    frozen=True,
    rename={
        "operating_system": "operatingSystem",
        "software": "preInstalledSw",
        "capacity_status": "capacitystatus",
        "market_option": "marketoption",
        "location_type": "locationType",
        "instance_type": "instanceType",
        "machine_class": "instanceFamily",
        "region": "regionCode",
        "vcpus": "vcpu",
        "gpus": "gpu",
    },
):
    """What the list tells of a product; empty if it is silent."""

    operating_system: str = ""
    software: str = ""
    operation: str = ""
    """The code that AWS bills by; licences are part of it."""
    tenancy: str = ""
    capacity_status: str = ""
    market_option: str = ""
    location_type: str = ""
    instance_type: str = ""
    machine_class: str = ""
    region: str = ""
    vcpus: str = ""
    memory: str = ""
    gpus: str = ""


_MACHINE_FAMILIES = ("Compute Instance", "Compute Instance (bare metal)")

_WANTED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("location_type", ("AWS Region", ""), "it is in a zone apart from the region"),
    ("operating_system", ("Linux",), _NOT_PLAIN_LINUX),
    ("software", ("NA", ""), "it has software installed"),
    ("operation", ("RunInstances", ""), _NOT_PLAIN_LINUX),
    ("tenancy", ("Shared",), "it is not of shared tenancy"),
    ("capacity_status", ("Used",), "it is not the price of a machine in use"),
    ("market_option", (ON_DEMAND, ""), NOT_ON_DEMAND),
)
"""Attributes, the values that a plain machine on demand has, and the reason to leave any other out."""


class AwsProduct(msgspec.Struct, frozen=True, rename={"family": "productFamily"}):
    """What is priced, which may be something other than a machine."""

    attributes: AwsAttributes
    family: str = ""
    """The kind of product, such as "Compute Instance" or "Storage"."""


def check_product(product: AwsProduct) -> None:
    """Reject a product that is not a plain Linux machine in a region."""
    if product.family not in _MACHINE_FAMILIES:
        raise Unusable("it is not a machine", shown(product.family))
    for name, values, reason in _WANTED:
        value = getattr(product.attributes, name)
        if value not in values:
            raise Unusable(reason, shown(value))


def machine_of_product(attributes: AwsAttributes, price: str) -> MachinePrice:
    """Return a product as a machine. `price` is what an hour costs in dollars, as the list writes it."""
    if not attributes.instance_type:
        raise Unusable("it has no instance type")
    if not attributes.region:
        raise Unusable("it has no region")
    gpu, num_gpus, gpu_memory_bytes = gpus_of_machine(
        attributes.instance_type, attributes.machine_class, attributes.gpus
    )
    memory = _MEMORY.fullmatch(attributes.memory)
    if memory is None:
        raise Unusable("its memory is not a number of GiB", shown(attributes.memory))
    if not _VCPUS.fullmatch(attributes.vcpus):
        raise Unusable("its vCPUs are no whole number", shown(attributes.vcpus))
    try:
        return MachinePrice(
            instance_type=attributes.instance_type,
            region=attributes.region,
            vcpus=float(attributes.vcpus),
            memory_bytes=round(float(memory[1].replace(",", "") + (memory[2] or "")) * _GIB),
            gpu=gpu,
            num_gpus=num_gpus,
            gpu_memory_bytes=gpu_memory_bytes,
            usd_per_hour=_usd(price),
        )
    except InvalidValue as error:
        raise Unusable("its figures are not plausible", shown(str(error))) from error


def _usd(price: str) -> float:
    if not _PRICE.fullmatch(price):
        raise Unusable("its price is no number", shown(price))
    return float(price)


@lru_cache(maxsize=4096)
def shown(text: str) -> str:
    """Make a cell safe to repeat. Most of the rows of a list are left out, with few different cells."""
    return quoted(text)
