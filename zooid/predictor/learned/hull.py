"""The range of measured settings, so that no extrapolation goes unnoticed."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from zooid.core.units import format_bytes

FAR = 2.0
"""Farther outside the measured range than this factor, a prediction would be a guess."""


class Beyond(NamedTuple):
    """How far a setting lies outside the measured range."""

    reason: str
    """The reason in words; empty where the setting lies inside."""
    is_far: bool


class Hull:
    """The measured settings of (bytes, members, concurrency).

    A setting lies inside if its bytes do so for all neighbouring numbers of members and concurrencies that were
    measured: a file may hold large messages among two members and small ones among eight.
    """

    def __init__(self, settings: Iterable[tuple[int, int, int]]) -> None:
        self._sizes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for num_bytes, num_members, concurrency in settings:
            self._sizes[num_members, concurrency].append(num_bytes)
        self._members = sorted({num_members for num_members, _ in self._sizes})
        self._concurrency = sorted({concurrency for _, concurrency in self._sizes})

    def beyond(self, num_bytes: int, num_members: int, concurrency: int) -> Beyond:
        outside = [
            (factor, f"{quantity} were {measured[0]} to {measured[-1]}")
            for quantity, measured, asked in (
                ("members", self._members, num_members),
                ("all-reduces at once", self._concurrency, concurrency),
            )
            if (factor := _factor(asked, measured[0], measured[-1])) > 1
        ]
        around = product(_neighbours(self._members, num_members), _neighbours(self._concurrency, concurrency))
        for members, at_once in around:
            sizes = self._sizes.get((members, at_once))
            setting = f"{members} members with {at_once} at once"
            if sizes is None:
                outside.append((FAR, f"{setting} were not measured"))
            elif (factor := _factor(num_bytes, min(sizes), max(sizes))) > 1:
                outside.append((factor, f"{setting} had {format_bytes(min(sizes))} to {format_bytes(max(sizes))}"))
        if not outside:
            return Beyond("", False)
        factor, reason = max(outside)
        return Beyond(reason, factor > FAR)


def _factor(asked: int, low: int, high: int) -> float:
    """The factor by which a number lies outside a range; 1 inside.

    >>> [_factor(asked, 4, 8) for asked in (2, 4, 6, 8, 12)]
    [2.0, 1.0, 1.0, 1.0, 1.5]
    """
    return max(low / asked, asked / high, 1.0)


def _neighbours(measured: Sequence[int], asked: int) -> set[int]:
    """The measured numbers next to one: itself if it was measured, the outermost if it lies outside.

    >>> [sorted(_neighbours([2, 4, 8], asked)) for asked in (2, 3, 9)]
    [[2], [2, 4], [8]]
    """
    below = [number for number in measured if number <= asked]
    above = [number for number in measured if number >= asked]
    return {max(below, default=measured[0]), min(above, default=measured[-1])}
