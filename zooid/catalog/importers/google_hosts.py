"""The machines that hold Google's accelerators, whose prices are apart from those of machines."""

from functools import cache
from importlib import resources

from zooid.catalog.csv_rows import read_rows
from zooid.core.records import Record

_FILE = "google_hosts.csv"


class GoogleHost(Record, frozen=True, kw_only=True):
    """A machine that holds a number of accelerators."""

    accelerator: str
    num_gpus: int
    instance_type: str
    is_fixed: bool = False
    """Whether the machine always comes with its accelerators, so that it cannot be rented without them."""
    source: str
    date: str


@cache
def google_hosts() -> tuple[GoogleHost, ...]:
    """All such machines; several may hold the same accelerators."""
    text = resources.files("zooid.catalog").joinpath("data", _FILE).read_text(encoding="utf-8")
    return read_rows(text, _FILE, GoogleHost, ("accelerator", "num_gpus", "instance_type"))
