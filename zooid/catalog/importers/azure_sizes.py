"""The sizes of Azure's machines, which its price list does not give."""

from functools import cache

from zooid.catalog.shipped_tables import read_table
from zooid.core.records import Record


class AzureSize(Record, frozen=True, kw_only=True):
    """What a machine of Azure has."""

    instance_type: str
    vcpus: float
    memory_bytes: int
    gpu: str = ""
    num_gpus: int = 0
    source: str
    date: str


@cache
def azure_sizes() -> tuple[AzureSize, ...]:
    """The sizes that are known; machines with a part of an accelerator are not among them."""
    return read_table("azure_sizes.csv", AzureSize, ("instance_type",))
