"""The user's own machine as an offer, so that it is planned and priced like any other."""

from zooid.core.errors import CatalogError
from zooid.core.resources.offer import Offer


def local_offer(memory_bytes: int, date: str) -> Offer:
    """The offer of this machine: one core a member, and memory that all members share; `date` is today.

    >>> local_offer(memory_bytes=8_000_000_000, date="2024-05-01").vcpus
    1.0
    """
    if memory_bytes < 1:
        raise CatalogError(f"`memory_bytes` of this machine is {memory_bytes}; it must be at least 1")
    return Offer(
        name="local",
        platform="local",
        kind="owned",
        market="owned",
        region="local",
        site="local",
        vcpus=1.0,
        memory_bytes=memory_bytes,
        usd_per_hour=0,
        startup_s=0,
        source="this machine",
        date=date,
    )
