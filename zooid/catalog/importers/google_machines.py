"""The sizes of Google's machines, from which the prices of cores and memory make the price of a machine."""

from functools import cache
from importlib import resources

from zooid.catalog.csv_rows import read_rows
from zooid.core.records import Record

_FILE = "google_machines.csv"


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
    text = resources.files("zooid.catalog").joinpath("data", _FILE).read_text(encoding="utf-8")
    return read_rows(text, _FILE, GoogleMachine, ("instance_type",))
