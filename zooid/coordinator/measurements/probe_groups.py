"""Which members may measure at the same time: those that do not take from each other what is to be measured."""

from collections.abc import Mapping

from zooid.coordinator.plans.offer_names import LOCAL, held_to
from zooid.core.resources.offer import Offer


def rounds(offers: Mapping[str, Offer], num_cores: float, memory_bytes: int) -> list[list[str]]:
    """The names of offers, in their order, so that each is in the first round that has room for it.

    Members of this machine that are held to a size measure together as long as it has cores and memory for all of
    them; one that is not takes whatever there is, and needs the machine to itself. Elsewhere, members have machines of
    their own.
    """
    found: list[list[str]] = []
    for name in offers:
        room = next((each for each in found if _fit([*each, name], offers, num_cores, memory_bytes)), None)
        if room is None:
            found.append([name])
        else:
            room.append(name)
    return found


def _fit(names: list[str], offers: Mapping[str, Offer], num_cores: float, memory_bytes: int) -> bool:
    here = [held_to(offers[name]) for name in names if offers[name].platform == LOCAL]
    sizes = [size for size in here if size is not None]
    if len(sizes) < len(here):
        return len(here) == 1
    return sum(size.vcpus for size in sizes) <= num_cores and sum(size.memory_bytes for size in sizes) <= memory_bytes
