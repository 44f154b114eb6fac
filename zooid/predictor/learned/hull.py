"""Whether something lies between what was measured, so that nothing is extrapolated without saying so."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from zooid.core.units import format_bytes

FAR = 2.0
"""Beyond what was measured by more than this factor, an answer would be a guess."""


class Beyond(NamedTuple):
    """How far out something lies."""

    reason: str
    """Empty where it lies between what was measured."""
    is_far: bool


class Hull:
    """Settings of (bytes, members, concurrency) that were measured.

    Something lies between them if it does so for every number of members and every concurrency next to it on either
    side that was measured: a file may hold large messages among two members, and small ones among eight.
    """

    def __init__(self, settings: Iterable[tuple[int, int, int]]) -> None:
        self._sizes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for num_bytes, num_members, concurrency in settings:
            self._sizes[num_members, concurrency].append(num_bytes)
        self._members = sorted({num_members for num_members, _ in self._sizes})
        self._concurrency = sorted({concurrency for _, concurrency in self._sizes})

    def beyond(self, num_bytes: int, num_members: int, concurrency: int) -> Beyond:
        outside = [
            (factor, f"{what} were {_range(numbers)}")
            for what, numbers, asked in (
                ("members", self._members, num_members),
                ("all-reduces at once", self._concurrency, concurrency),
            )
            if (factor := _factor(asked, numbers[0], numbers[-1])) > 1
        ]
        around = product(_neighbours(self._members, num_members), _neighbours(self._concurrency, concurrency))
        for members, at_once in around:
            sizes = self._sizes.get((members, at_once))
            who = f"{members} members with {at_once} at once"
            if sizes is None:
                outside.append((FAR, f"{who} were not measured"))
            elif (factor := _factor(num_bytes, min(sizes), max(sizes))) > 1:
                outside.append((factor, f"{who} had {format_bytes(min(sizes))} to {format_bytes(max(sizes))}"))
        if not outside:
            return Beyond("", False)
        factor, reason = max(outside)
        return Beyond(reason, factor > FAR)


def _factor(asked: int, least: int, most: int) -> float:
    """How far it is out of a range.

    >>> [_factor(asked, 4, 8) for asked in (2, 4, 6, 8, 12)]
    [2.0, 1.0, 1.0, 1.0, 1.5]
    """
    return max(least / asked, asked / most, 1.0)


def _neighbours(measured: Sequence[int], asked: int) -> set[int]:
    """The next ones on either side; itself where it was measured; the outermost where it lies outside.

    >>> [sorted(_neighbours([2, 4, 8], asked)) for asked in (2, 3, 9)]
    [[2], [2, 4], [8]]
    """
    below = [number for number in measured if number <= asked]
    above = [number for number in measured if number >= asked]
    return {max(below, default=measured[0]), min(above, default=measured[-1])}


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}"
