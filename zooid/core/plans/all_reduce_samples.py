"""All-reduces as they were measured: what a library that is not ours takes is learned from these."""

from collections.abc import Iterable
from typing import Literal

from zooid.core.records import FileRecord, Record, require

Library = Literal["gloo", "nccl"]
"""What carries an all-reduce whose messages are not ours to list, and whose time is therefore learned."""
ELEMENT_BYTES = 4
"""Measured all-reduces add up float32 numbers."""


class AllReduceSample(Record, frozen=True, kw_only=True):
    """One measurement: so many all-reduces of so many bytes, begun at once by all members."""

    library: Library
    offer: str
    site: str
    """Where all its members were."""
    num_bytes: int
    """Of each of the all-reduces."""
    num_members: int
    concurrency: int
    """How many of them were under way at once, in one group."""
    took_s: float
    """From the common start until the last of them was done on the last member."""
    at_s: float
    """Unix time."""

    def __post_init__(self) -> None:
        require(self.num_bytes > 0, f"`num_bytes` is {self.num_bytes}; it must be above 0")
        require(self.num_members >= 2, f"`num_members` is {self.num_members}; an all-reduce takes 2 or more")
        require(self.concurrency >= 1, f"`concurrency` is {self.concurrency}; it must be at least 1")
        require(0 < self.took_s < float("inf"), f"`took_s` is {self.took_s:g}; it must be above 0")
        require(0 <= self.at_s < float("inf"), f"`at_s` is {self.at_s:g}; it must be a Unix time")

    @property
    def bus_bytes_per_s(self) -> float:
        """Srifty's bus bandwidth, 2(n−1)/n · bytes / time (§4.2): what each member's link carries for one of them."""
        return bus_bytes(self.num_bytes, self.num_members) / self.took_s


class AllReduceSamples(FileRecord, frozen=True, kw_only=True, tag="all_reduce_samples"):
    """What one or several sweeps have measured."""

    zooid_version: str
    samples: tuple[AllReduceSample, ...]

    def joined(self, others: Iterable["AllReduceSamples"]) -> "AllReduceSamples":
        """These and earlier ones, by their time; what is in several files counts once."""
        everything = dict.fromkeys(sample for file in (self, *others) for sample in file.samples)
        ordered = sorted(everything, key=lambda sample: sample.at_s)
        return AllReduceSamples(zooid_version=self.zooid_version, samples=tuple(ordered))


def bus_bytes(num_bytes: int, num_members: int) -> float:
    """What an all-reduce moves over the link of each member, each way, where it is as thrifty as can be.

    >>> bus_bytes(1000, 4)
    1500.0
    """
    return 2 * (num_members - 1) / num_members * num_bytes
