"""The machines that hold Google's accelerators, whose prices are apart from those of machines."""

from functools import cache

from zooid.catalog.shipped_tables import read_table
from zooid.core.records import Record


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
    return read_table("google_hosts.csv", GoogleHost, ("accelerator", "num_gpus", "instance_type"))
