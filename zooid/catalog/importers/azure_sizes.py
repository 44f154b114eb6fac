"""The sizes of Azure's machines, which its price list does not give."""

from functools import cache
from importlib import resources

from zooid.catalog.csv_rows import read_rows
from zooid.core.records import Record

_FILE = "azure_sizes.csv"


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
    text = resources.files("zooid.catalog").joinpath("data", _FILE).read_text(encoding="utf-8")
    return read_rows(text, _FILE, AzureSize, ("instance_type",))
