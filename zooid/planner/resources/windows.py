"""Where to look closely: the cells of heights and the prices of time for which bounds are computed.

A first, wide choice covers every pipeline. Once a good pipeline is known, most of it is ruled out, and as many cells
and prices again go to what is left.
"""

from dataclasses import dataclass

import numpy as np

from zooid.planner.resources.bounds import Aim, Bounds
from zooid.planner.resources.stages import Stages
from zooid.predictor.equations.array_checks import Array


@dataclass(frozen=True, eq=False)
class Window:
    """Cells [low, high] of heights, ascending, and prices of time, ascending from 0."""

    low_s: Array
    high_s: Array
    prices: Array

    def bounds(self, stages: Stages) -> Bounds:
        return Bounds(stages, self.low_s, self.high_s, self.prices)


def least_height_s(stages: Stages) -> float:
    """The least height that a whole pipeline can have; infinite where layers do not fit."""
    return _least(stages, np.maximum, stages.height_s)


def _least(stages: Stages, combine: np.ufunc, values: Array) -> float:
    """Over all pipelines, the least of what combining their stages' values gives."""
    least = np.full(stages.num_layers + 1, np.inf)
    least[0] = 0.0
    for end in range(1, stages.num_layers + 1):
        part = stages.ending_at(end)
        least[end] = combine(least[stages.first[part]], values[part]).min(initial=np.inf)
    return float(least[-1])


def wide_window(stages: Stages, heights_s: Array, num_cells: int, num_prices: int) -> Window:
    """Every height there is, and prices from far below to far above time / rate of any pipeline."""
    low_s, high_s = _cells(heights_s, num_cells)
    scale_s, dearest = float(heights_s[0]) * (stages.laps + 1), float(stages.usd_per_s.max())
    if dearest <= 0 or scale_s <= 0:
        return Window(low_s, high_s, np.zeros(1))
    least_rate = max(_least(stages, np.add, stages.usd_per_s), 1e-3 * dearest)
    least, most = 0.1 * scale_s / (dearest * min(stages.num_layers, 64)), 30 * scale_s / least_rate
    return Window(low_s, high_s, np.concatenate([[0.0], np.geomspace(least, most, num_prices - 1)]))


def narrower(
    bounds: Bounds, aim: Aim, value: float, heights_s: Array, num_cells: int, num_prices: int
) -> Window | None:
    """What may still hold something better than `value`; None where nothing does."""
    is_open = bounds.roots(aim) < value
    cells = np.flatnonzero(is_open.any(axis=1))
    if not len(cells):
        return None
    within = (heights_s >= bounds.low_s[cells[0]]) & (heights_s <= bounds.high_s[cells[-1]])
    if not within.any():
        return None
    low_s, high_s = _cells(heights_s[within], num_cells)
    prices, last = bounds.prices, len(bounds.prices) - 1
    if not last:
        return Window(low_s, high_s, prices)
    # corner c is where lines c and c + 1 meet; a time limit cuts one of the lines
    lines = np.flatnonzero(is_open[:, : last + 1].any(axis=0))
    if np.isfinite(aim.limit_s):
        shifted = bounds.whole.lines[cells] + bounds.stages.laps * bounds.low_s[cells, None]
        cutting = ((shifted[:, 1:] - aim.limit_s) / prices[1:]).argmax(axis=1) + 1
        lines = np.concatenate([lines, cutting])
    # the slopes in between are what matters; the next lines on both sides keep shut what is shut
    first, end = int(lines.min()), min(int(lines.max()) + 1, last)
    least = prices[first] if first else 0.3 * prices[1]
    most = prices[end] * (3.0 if int(lines.max()) == last else 1.01)
    outer = [0.0, *prices[1:first][-1:], *prices[end + 1 :][:1]]
    inner = np.geomspace(least, most, num_prices - len(outer))
    return Window(low_s, high_s, np.unique(np.concatenate([outer, inner])))


def _cells(heights_s: Array, num_cells: int) -> tuple[Array, Array]:
    """Heights in ascending order, cut into cells of about the same ratio, each from its least to its largest height."""
    if len(heights_s) <= num_cells:
        return heights_s, heights_s
    floor = max(float(heights_s[0]), 1e-6 * float(heights_s[-1]))
    edges = np.geomspace(floor, float(heights_s[-1]), num_cells + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(heights_s, edges)]))
    starts = starts[starts < len(heights_s)]
    return heights_s[starts], heights_s[np.append(starts[1:], len(heights_s)) - 1]
