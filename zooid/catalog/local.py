"""The user's own machine as an offer, so that it is planned and priced like everything else."""

from zooid.core.errors import CatalogError
from zooid.core.offer import Offer


def local_offer(num_cores: int, memory_bytes: int, date: str) -> Offer:
    """One member on this machine: a core, and that core's share of the memory; `date` is today.

    >>> local_offer(num_cores=4, memory_bytes=8_000_000_000, date="2024-05-01").memory_bytes
    2000000000
    """
    for name, value in (("num_cores", num_cores), ("memory_bytes", memory_bytes)):
        if value < 1:
            raise CatalogError(f"`{name}` of this machine is {value}; it must be at least 1")
    return Offer(
        name="local",
        platform="local",
        kind="owned",
        market="owned",
        region="local",
        site="local",
        vcpus=1,
        memory_bytes=memory_bytes // num_cores,
        usd_per_hour=0,
        startup_s=0,
        source="this machine",
        date=date,
    )
