"""Measured all-reduces, from which the times of an external library are learned."""

from collections.abc import Iterable
from typing import Literal

from zooid.core.records import FileRecord, Record, require, require_at_least, require_positive

Library = Literal["gloo", "nccl"]
"""Library whose all-reduces zooid does not schedule itself, so that their times have to be learned."""
ELEMENT_BYTES = 4
"""Bytes of one element; measured all-reduces sum float32 numbers."""


class AllReduceSample(Record, frozen=True, kw_only=True):
    """One measurement of all-reduces that all members begin at the same time."""

    library: Library
    offer: str
    site: str
    """Site of all members."""
    num_bytes: int
    """Bytes of each all-reduce."""
    num_members: int
    concurrency: int
    """Number of all-reduces in flight at once, in one group."""
    took_s: float
    """Time from the common start until the last member finished the last all-reduce."""
    at_s: float
    """Unix time of the measurement."""

    def __post_init__(self) -> None:
        require_positive(self, "num_bytes")
        require_at_least(2, self, "num_members")
        require_at_least(1, self, "concurrency")
        require(0 < self.took_s < float("inf"), f"`took_s` is {self.took_s:g}; it must be above 0")
        require(0 <= self.at_s < float("inf"), f"`at_s` is {self.at_s:g}; it must be a Unix time")

    @property
    def bus_bytes_per_s(self) -> float:
        """Srifty's bus bandwidth (§4.2): 2(n−1)/n · bytes / time."""
        return 2 * (self.num_members - 1) / self.num_members * self.num_bytes / self.took_s


class AllReduceSamples(FileRecord, frozen=True, kw_only=True, tag="all_reduce_samples"):
    """The samples of one or several sweeps."""

    zooid_version: str
    samples: tuple[AllReduceSample, ...]

    def joined(self, others: Iterable["AllReduceSamples"]) -> "AllReduceSamples":
        """Merge with other files, ordered by time; a sample that occurs in several files counts once."""
        distinct = dict.fromkeys(sample for file in (self, *others) for sample in file.samples)
        ordered = sorted(distinct, key=lambda sample: sample.at_s)
        return AllReduceSamples(zooid_version=self.zooid_version, samples=tuple(ordered))
