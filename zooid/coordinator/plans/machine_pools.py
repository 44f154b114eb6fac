"""Pools: similar machines of one site are one offer, and the platform picks a machine for each member."""

from collections.abc import Iterable

from msgspec import structs

from zooid.core.resources.offer import Offer

_JOINT = "+"
_MEMORY_DIFFERENCE = 0.05
"""Machines are alike if one has at most this much less memory than the other, since kernels keep some of it back."""
_OWN_FIELDS = ("name", "memory_bytes", "max_members", "source", "date")
"""Fields in which machines of a pool may differ."""


def pooled(offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers, with one for all machines that are alike instead of one for each."""
    pools: list[list[Offer]] = []
    for offer in {offer.name: offer for offer in offers}.values():
        pool = next((pool for pool in pools if _are_alike(pool[0], offer)), None)
        if pool is None:
            pools.append([offer])
        else:
            pool.append(offer)
    return [_joined(pool) for pool in pools]


def machines_of(name: str) -> list[str]:
    """Return the names of the machines of a pool.

    >>> machines_of("ssh.gpu1+gpu2"), machines_of("ssh.gpu1")
    (['ssh.gpu1', 'ssh.gpu2'], ['ssh.gpu1'])
    """
    platform, _, machines = name.partition(".")
    return [f"{platform}.{machine}" for machine in machines.split(_JOINT)]


def _are_alike(one: Offer, other: Offer) -> bool:
    if one.platform != "ssh" or one.max_members != other.max_members:
        return False
    smaller, larger = sorted((one.memory_bytes, other.memory_bytes))
    fields = [field for field in one.__struct_fields__ if field not in _OWN_FIELDS]
    are_equal = all(getattr(one, field) == getattr(other, field) for field in fields)
    return are_equal and smaller >= (1 - _MEMORY_DIFFERENCE) * larger


def _joined(pool: list[Offer]) -> Offer:
    first, *others = pool
    if not others:
        return first
    return structs.replace(
        first,
        name=_JOINT.join([first.name, *(offer.name.partition(".")[2] for offer in others)]),
        memory_bytes=min(offer.memory_bytes for offer in pool),
        max_members=sum(offer.max_members or 0 for offer in pool),
    )
