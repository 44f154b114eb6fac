"""The sizes of Google's machines, from which the prices of cores and memory make the price of a machine."""

from functools import cache

from zooid.catalog.shipped_tables import read_table
from zooid.core.records import Record


class GoogleMachine(Record, frozen=True, kw_only=True):
    """The cores and the memory of a machine."""

    instance_type: str
    vcpus: float
    memory_bytes: int
    source: str
    date: str


@cache
def google_machines() -> tuple[GoogleMachine, ...]:
    """The machines whose prices are computed: those that hold accelerators, and some without."""
    return read_table("google_machines.csv", GoogleMachine, ("instance_type",))
