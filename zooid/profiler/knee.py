"""The knee of a model: the grain size at which its work turns from bound by latency to bound by throughput.

Small grains leave a device waiting for its next instruction, and time hardly grows with their size; large ones keep it
busy, and time grows with every sample. Where the turn is sharp, two straight lines that meet there describe the times.
Where it is not, one line does, and the knee is where the part of the time that grows is as long as the part that does
not.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Point = tuple[int, float]
"""A grain size, and the seconds of the whole model for one such grain, which are above 0."""

_FEWEST_POINTS = 4
"""Any three points that bend upwards lie on two lines, and say nothing about where these meet."""
_LINE_HOLDS = 0.05
"""One line that misses the points by no more than this part of them is good enough: so much comes from noise, and from
caches and kernels that suit one size better than the next."""
_CLEARLY = 0.5
"""Two lines have to miss by no more than this part of what one line misses by."""
_SAME = 1e-12
"""Squared misses that differ by less are those of equally good fits."""


@dataclass(frozen=True)
class Fit:
    """Seconds of a grain of n samples: fixed_s + n × s_per_sample + max(0, n − bend) × more_s_per_sample."""

    fixed_s: float
    s_per_sample: float
    more_s_per_sample: float
    bend: float
    miss: float
    """Root of the mean squared relative error."""


def knee(points: Sequence[Point], largest_grain: int) -> int:
    """Where two lines meet, if they describe the points clearly better than one; else where the one line has doubled.

    Clearly better: one line misses the points by more than 5 %, and two by no more than half of that. The points ascend
    in size. A single one says nothing about smaller grains, and is the knee itself.
    """
    if len(points) == 1:
        return points[0][0]
    one = one_line(points)
    if len(points) >= _FEWEST_POINTS and one.miss > _LINE_HOLDS:
        two = two_lines(points)
        if two.miss <= _CLEARLY * one.miss:
            return round(two.bend)
    if one.fixed_s >= one.s_per_sample * largest_grain:
        return largest_grain
    return max(1, round(one.fixed_s / one.s_per_sample))


def one_line(points: Sequence[Point]) -> Fit:
    """The line with the least squared relative error, among those that never fall and are nowhere below zero."""
    return _fit(points, bend=float(points[-1][0]))


def two_lines(points: Sequence[Point]) -> Fit:
    """Two lines that meet, the second at least as steep as the first, with the least squared relative error.

    As long as they meet between the same two sizes, the error is convex in the two lines, and that they meet there is a
    linear condition. So the best place is where the best line before it meets the best line behind it, or else one of
    the sizes, and only these have to be tried. Where several are equally good, since a single point before or behind
    leaves its line free, it is the smallest.
    """
    fits = [_fit(points, bend) for bend in _bends(points)]
    least = min(fit.miss**2 for fit in fits)
    return min((fit for fit in fits if fit.miss**2 <= least + _SAME), key=lambda fit: fit.bend)


def _bends(points: Sequence[Point]) -> list[float]:
    """Where two lines may meet: at every size but the last, and once between any two of them."""
    bends = [float(size) for size, _ in points[:-1]]
    for first_behind in range(1, len(points) - 1):
        before, behind = points[:first_behind], points[first_behind:]
        one = one_line(before)
        fixed_s, slope = (before[0][1], 0.0) if first_behind == 1 else (one.fixed_s, one.s_per_sample)
        fixed_behind_s, slope_behind = _least_squares(_columns(behind, 0.0)[:, :2])
        if slope_behind > slope:
            bend = float((fixed_s - fixed_behind_s) / (slope_behind - slope))
            if before[-1][0] <= bend <= behind[0][0]:
                bends.append(bend)
    return bends


def _fit(points: Sequence[Point], bend: float) -> Fit:
    """With no coefficient below zero: some of the three are zero, and least squares gives the others. All are tried."""
    columns = _columns(points, bend)
    fits = []
    for count in (1, 2, 3):
        for chosen in map(list, itertools.combinations(range(3), count)):
            coefficients = np.zeros(3)
            coefficients[chosen] = _least_squares(columns[:, chosen])
            if (coefficients >= 0).all():
                miss = float(np.sqrt(np.mean((columns @ coefficients - 1) ** 2)))
                fixed_s, s_per_sample, more_s_per_sample = (float(value) for value in coefficients)
                fits.append(Fit(fixed_s, s_per_sample, more_s_per_sample, bend, miss))
    return min(fits, key=lambda fit: fit.miss)  # the fixed part alone is always among them


def _columns(points: Sequence[Point], bend: float) -> Array:
    """What each coefficient adds at each point, as a part of the point's time: errors are relative."""
    sizes = np.array([float(size) for size, _ in points])
    times_s = np.array([time_s for _, time_s in points])
    parts: Array = np.stack([np.ones_like(sizes), sizes, np.maximum(0.0, sizes - bend)]) / times_s
    return parts.T


def _least_squares(columns: Array) -> Array:
    """The coefficients with which the columns add up to one at every point, as nearly as they can."""
    return np.linalg.lstsq(columns, np.ones(len(columns)))[0]
