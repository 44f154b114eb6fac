"""The largest that still fits, with few tries: each try of a size is a search or a measurement of its own.

Hydrozoa (§3.3) looks for the size of a grain by doubling and for the number of grains by bisection, both as far as
memory allows. The answers are exact where fitting is monotone: what is smaller than something that fits, fits.
"""

from collections.abc import Callable

from zooid.core.errors import InputError
from zooid.core.records import Record, require


class GrainChoice(Record, frozen=True, kw_only=True):
    """One way to cut a replica's samples of a step into grains."""

    grain_size: int
    num_grains: int
    """The largest number of them that fits."""

    def __post_init__(self) -> None:
        for name in ("grain_size", "num_grains"):
            require(getattr(self, name) >= 1, f"`{name}` is {getattr(self, name)}; it must be at least 1")


def largest_fitting(fits: Callable[[int], bool], most: int) -> int:
    """The largest of 1, 2, …, `most` that fits, and 0 where not even 1 does: by doubling, and bisection in between.

    >>> largest_fitting(lambda size: size * 90 <= 12_000, most=1024)
    133
    """
    _require_most(most)
    low, high = 0, 1  # low fits; from high on it is not known
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def doubled_while_fitting(fits: Callable[[int], bool], most: int) -> list[int]:
    """1, 2, 4, … as long as they fit, up to `most`.

    >>> doubled_while_fitting(lambda size: size * 90 <= 12_000, most=1024)
    [1, 2, 4, 8, 16, 32, 64, 128]
    """
    _require_most(most)
    sizes: list[int] = []
    size = 1
    while size <= most and fits(size):
        sizes.append(size)
        size *= 2
    return sizes


def grain_choices(fits: Callable[[int, int], bool], most_samples: int) -> list[GrainChoice]:
    """For every grain size 1, 2, 4, … of which one grain fits, the largest number of grains that does.

    `fits(grain_size, num_grains)` says whether the replica's members can hold what they keep of so many grains; a
    replica has at most `most_samples` in a step.

    >>> [(choice.grain_size, choice.num_grains) for choice in grain_choices(lambda size, count: size * count <= 5, 100)]
    [(1, 5), (2, 2), (4, 1)]
    """
    sizes = doubled_while_fitting(lambda size: fits(size, 1), most_samples)
    return [
        GrainChoice(
            grain_size=size,
            num_grains=largest_fitting(lambda count, size=size: fits(size, count), most_samples // size),  # type: ignore[misc]
        )
        for size in sizes
    ]


def _require_most(most: int) -> None:
    if most < 1:
        raise InputError(f"sizes up to {most} are asked for; the largest that is looked at must be at least 1")
