"""The sizes that members of an offer may get: the memory that is predicted, with a margin, rounded up to a size.

Which sizes can matter? With chosen vCPUs, more memory than is needed only costs more, so a stage has one size for each
number of vCPUs. Where memory determines the vCPUs, more memory than is needed also computes faster. Then a stage has
the smallest size that holds it, and those sizes to try (`SizedOffer.tried`) which are larger.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from msgspec import structs

from zooid.catalog import sized_offer
from zooid.core.resources.offer import Offer
from zooid.core.resources.sized_offer import MemberSize, SizedOffer
from zooid.predictor.equations.array_checks import Array

MARGIN = 0.05
"""Fraction of the predicted memory that members get in addition. No prediction of `benchmarks.memory` was too low."""
ENTRY_BYTES = 64 * 2**20
"""Memory of the entry program, which starts a member and shares its limit."""


@dataclass(frozen=True, eq=False)
class SizeRange:
    """The sizes of an offer, smallest first, as arrays; the first is the offer's own."""

    memory_bytes: Array
    vcpus: Array
    usd_per_hour: Array

    @property
    def slowness(self) -> Array:
        """Times on each size as a fraction of those on the first."""
        times: Array = self.vcpus[0] / self.vcpus
        return times

    @property
    def dearness(self) -> Array:
        """Prices of the sizes as multiples of the first."""
        first = self.usd_per_hour[0]
        return self.usd_per_hour / first if first else np.ones(len(self.usd_per_hour))

    @property
    def is_faster_with_memory(self) -> bool:
        """Whether larger sizes have more vCPUs."""
        return bool(self.vcpus[-1] > self.vcpus[0])


def sizes_of(offer: Offer) -> SizeRange:
    """The sizes that a member on an offer may get. An offer with a fixed size has one."""
    sized = _sized_by(offer)
    if sized is None:
        return SizeRange(*(np.array([float(each)]) for each in (offer.member_bytes, offer.vcpus, offer.usd_per_hour)))
    sizes = _listed_sizes(sized, offer.name)
    price_change = offer.usd_per_hour / sizes.usd_per_hour[0]  # since the catalog was written, for all sizes alike
    return SizeRange(sizes.memory_bytes, sizes.vcpus, sizes.usd_per_hour * price_change)


def needed_bytes(predicted_bytes: Array, offer: Offer) -> Array:
    """The memory that members on an offer get at least, by what is predicted. A fixed size needs no margin."""
    return predicted_bytes * (1 + MARGIN) + ENTRY_BYTES if offer.sized_by else predicted_bytes


def missing_bytes(predicted_bytes: float, offer: Offer, *, keeps_speed: bool = False) -> int:
    """Memory that the largest size lacks, with the margin. At most 0 if one fits."""
    memory_bytes = _allowed(offer, keeps_speed=keeps_speed).memory_bytes
    return round(float(needed_bytes(np.array(predicted_bytes), offer)) - float(memory_bytes[-1]))


def holdable_bytes(offer: Offer, *, keeps_speed: bool = False) -> float:
    """The largest predicted memory that a member on an offer holds, beside the margin."""
    memory_bytes = float(_allowed(offer, keeps_speed=keeps_speed).memory_bytes[-1])
    return (memory_bytes - ENTRY_BYTES) / (1 + MARGIN) if offer.sized_by else memory_bytes


def fitted(offer: Offer, predicted_bytes: float, *, keeps_speed: bool = False) -> Offer:
    """The offer with the smallest size that holds so much memory and the margin; the largest one if none does."""
    sized = _sized_by(offer)
    if sized is None:
        return offer
    memory_bytes = _allowed(offer, keeps_speed=keeps_speed).memory_bytes
    index = int(np.searchsorted(memory_bytes, float(needed_bytes(np.array(predicted_bytes), offer))))
    return _with_size(offer, sized, min(index, len(memory_bytes) - 1))


def _allowed(offer: Offer, *, keeps_speed: bool) -> SizeRange:
    sizes = sizes_of(offer)
    if keeps_speed and sizes.is_faster_with_memory:
        return SizeRange(sizes.memory_bytes[:1], sizes.vcpus[:1], sizes.usd_per_hour[:1])
    return sizes


def fixed(offer: Offer) -> Offer:
    """The offer with the size that it has."""
    return structs.replace(offer, sized_by="") if offer.sized_by else offer


def speed_name(offer: Offer) -> str:
    """What offers are called together that are equally fast and differ in their memory."""
    sized = sized_offer(offer.name)
    return offer.name if sized is None or sized.tried else f"{sized.name} with {offer.vcpus:g} vCPUs"


def _sized_by(offer: Offer) -> SizedOffer | None:
    return sized_offer(offer.sized_by) if offer.sized_by else None


def _with_size(offer: Offer, sized: SizedOffer, index: int) -> Offer:
    size = _sizes_from(sized, offer.name)[index]
    vcpus, memory_bytes, _ = sized.amounts_of(size)
    usd_per_hour = float(sizes_of(offer).usd_per_hour[index])
    name = f"{sized.name}.{size}"
    return structs.replace(offer, name=name, vcpus=vcpus, memory_bytes=memory_bytes, usd_per_hour=usd_per_hour)


@cache
def _sizes_from(sized: SizedOffer, name: str) -> tuple[MemberSize, ...]:
    return sized.sizes_from(name)


@cache
def _listed_sizes(sized: SizedOffer, name: str) -> SizeRange:
    vcpus, memory_bytes, usd_per_hour = np.array([_amounts_of(sized, size) for size in _sizes_from(sized, name)]).T
    return SizeRange(memory_bytes, vcpus, usd_per_hour)


@cache
def _amounts_of(sized: SizedOffer, size: MemberSize) -> tuple[float, int, float]:
    return sized.amounts_of(size)
