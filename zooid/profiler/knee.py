"""The knee of a model: the grain size at which its work turns from latency-bound to throughput-bound.

With small grains a device waits for its next instruction, and time hardly grows with size. Large grains keep it busy,
and time grows with every sample. Where the turn is sharp, two straight lines that meet there describe the times.
Otherwise one line does, and the knee is where its growing part equals its fixed part.
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

_MIN_POINTS = 4
"""Any three points that bend upwards lie on two lines, and say nothing about where these meet."""
_LINE_ERROR = 0.05
"""One line with an error up to this is good enough: noise, caches and kernels account for as much."""
_ERROR_RATIO = 0.5
"""Two lines are clearly better if their error is at most this fraction of the error of one line."""
_SAME = 1e-12
"""Fits whose squared errors differ by less are equally good."""


@dataclass(frozen=True)
class LineFit:
    """Seconds of a grain of n samples: fixed_s + n × s_per_sample + max(0, n − bend) × more_s_per_sample."""

    fixed_s: float
    s_per_sample: float
    more_s_per_sample: float
    bend: float
    error: float
    """Root mean square of the relative errors."""


def knee(points: Sequence[Point], largest_grain: int) -> int:
    """Return where two lines meet, if they fit clearly better than one; otherwise where the one line has doubled.

    Two lines are clearly better if one line has an error above 5 % and two have at most half of it. The points ascend
    in size. A single point says nothing about smaller grains, and is the knee itself.
    """
    if len(points) == 1:
        return points[0][0]
    one = one_line(points)
    if len(points) >= _MIN_POINTS and one.error > _LINE_ERROR:
        two = two_lines(points)
        if two.error <= _ERROR_RATIO * one.error:
            return round(two.bend)
    if one.fixed_s >= one.s_per_sample * largest_grain:
        return largest_grain
    return max(1, round(one.fixed_s / one.s_per_sample))


def one_line(points: Sequence[Point]) -> LineFit:
    """Return the line with the least squared relative error among those that are never negative and never fall."""
    return _fit(points, bend=float(points[-1][0]))


def two_lines(points: Sequence[Point]) -> LineFit:
    """Return two lines that meet, the second at least as steep, with the least squared relative error.

    While they meet between the same two sizes, the error is convex in the two lines, and meeting there is a linear
    condition. So the best bend is where the best line before it meets the best line behind it, or else one of the
    sizes, and only these have to be tried. Several bends are equally good where a single point leaves its line free;
    then it is the smallest.
    """
    fits = [_fit(points, bend) for bend in _bends(points)]
    min_squared = min(fit.error**2 for fit in fits)
    return min((fit for fit in fits if fit.error**2 <= min_squared + _SAME), key=lambda fit: fit.bend)


def _bends(points: Sequence[Point]) -> list[float]:
    """Return where two lines may meet: at every size but the last, and at most once between any two sizes."""
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


def _fit(points: Sequence[Point], bend: float) -> LineFit:
    """Return the best fit without negative coefficients, from least squares on every subset of the three."""
    columns = _columns(points, bend)
    fits = []
    for count in (1, 2, 3):
        for chosen in map(list, itertools.combinations(range(3), count)):
            coefficients = np.zeros(3)
            coefficients[chosen] = _least_squares(columns[:, chosen])
            if (coefficients >= 0).all():
                error = float(np.sqrt(np.mean((columns @ coefficients - 1) ** 2)))
                fixed_s, s_per_sample, more_s_per_sample = map(float, coefficients)
                fits.append(LineFit(fixed_s, s_per_sample, more_s_per_sample, bend, error))
    return min(fits, key=lambda fit: fit.error)  # the fixed part alone is always among them


def _columns(points: Sequence[Point], bend: float) -> Array:
    """Return the contribution of each coefficient at each point, relative to the point's time."""
    sizes = np.array([float(size) for size, _ in points])
    times_s = np.array([time_s for _, time_s in points])
    parts: Array = np.stack([np.ones_like(sizes), sizes, np.maximum(0.0, sizes - bend)]) / times_s
    return parts.T


def _least_squares(columns: Array) -> Array:
    """Return the coefficients with which the columns add up most nearly to 1 at every point."""
    return np.linalg.lstsq(columns, np.ones(len(columns)))[0]
