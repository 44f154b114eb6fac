"""Lower bounds for completions of partial pipelines, whatever stages the layers in front will have.

Pipelines are built from the last stage to the first. For the layers [0, p) that are left, a shortest path gives

    u(p) = min (Σ forward + λ · rate)                                  the forward sum alone
    v(p) = min over the stage [a, p) of max(v(a) + forward + backward + get,
                                            u(a) + forward + backward + sync − slack) + λ · price

for several prices of time λ and, in cells, for several heights. Why they are lower bounds:

- λ: every completion has sum + λ · rate ≥ v, so sum ≥ v − λ · rate for every λ at once. The upper envelope of these
  lines bounds the time for any rate, which is in dollars per second.
- A cell holds the pipelines whose height (the largest `height_s` of a stage) is in [low, high]. None of their stages is
  higher than `high`, which removes edges of the path. One is a peak, at least `low` high, and so ∆f + ∆b ≥ low.
- v's first term is for a stage further in front that ends last, its second for the stage [a, p) itself. u and v are
  minimised apart, though they belong to the same stages; that only lowers them.
- A stage's backward waits only for stations from there on. With a peak behind it, that is `low` at least. Behind the
  last peak it is at least the stage's own, and `slack` subtracts what may be missing. So both paths are computed: with
  a peak behind p (PEAK), and with none behind p, which has to pass a peak further in front (NO_PEAK).
"""

import math

import numpy as np

from zooid.planner.front import Ints, Mask
from zooid.planner.stage_sizes.arrays import PartialPipelines, SizedStages
from zooid.planner.stage_sizes.problem import Aim
from zooid.predictor.equations.array_checks import Array

INFEASIBLE_S = 1e200
"""A time beyond any other that is still a number when it is multiplied."""
NO_PEAK, PEAK = 0, 1


class Envelope:
    """The upper envelope of the lines w − λ · rate, by its corners: the last axis of `usd_per_s` and `time_s`.

    Time · (α₁ · rate + α₂) is concave where time falls linearly with the rate, so its minimum is at a corner.
    """

    def __init__(self, lines: Array, prices: Array, min_usd_per_s: Array) -> None:
        """`lines` holds w for each of `prices`, which are λ; no completion has a rate below `min_usd_per_s`.

        Each line is lowered until slopes are in order, which keeps the bound: lines that are nowhere the highest do not
        matter.
        """
        is_open = np.isfinite(lines[..., 0]) & np.isfinite(min_usd_per_s)
        lowered = np.where(is_open[..., None], lines, 0.0)
        usd_per_s = np.zeros_like(lowered)
        for line in range(len(prices) - 1):
            step = prices[line + 1] - prices[line]
            slope = (lowered[..., line + 1] - lowered[..., line]) / step
            usd_per_s[..., line] = np.minimum(slope, usd_per_s[..., line - 1]) if line else slope
            lowered[..., line + 1] = lowered[..., line] + usd_per_s[..., line] * step
        self.lines, self.prices = lines, prices
        self.usd_per_s = np.maximum(usd_per_s, np.where(is_open, min_usd_per_s, 0.0)[..., None])
        time_s = (lowered[..., None, :] - prices * self.usd_per_s[..., :, None]).max(axis=-1)
        self.time_s = np.where(is_open[..., None], time_s, INFEASIBLE_S)

    def values(
        self, aim: Aim, num_replicas: int, rows: tuple[Ints, ...] | slice, more_s: Array, more_usd_per_s: Array
    ) -> Array:
        """The aim at every corner of `rows`, when time and rate are larger by `more_s` and `more_usd_per_s`."""
        time_s = more_s[:, None] + self.time_s[rows]
        values = aim.value(time_s, more_usd_per_s[:, None] + self.usd_per_s[rows], num_replicas)
        if not math.isfinite(aim.max_time_s):
            return values
        # time falls with the rate: the least rate that keeps the time limit is one more corner
        lines = more_s[:, None] + self.lines[rows]
        is_open = lines[:, 0] < aim.max_time_s
        excess = np.where(is_open[:, None], lines - aim.max_time_s, 0.0)[:, 1:] / self.prices[1:]
        needed_usd_per_s = more_usd_per_s + excess.max(axis=-1, initial=0.0)
        at_limit = aim.max_time_s * (aim.usd * num_replicas * needed_usd_per_s + aim.s)
        return np.concatenate([values, np.where(is_open, at_limit, np.inf)[:, None]], axis=-1)


class PipelineBounds:
    """Shortest paths of one degree, for some cells of heights and prices of time, and the bounds that they give."""

    def __init__(self, stages: SizedStages, low_s: Array, high_s: Array, prices: Array) -> None:
        """Cells are [low_s, high_s], ascending; prices ascend from 0."""
        self.stages, self.low_s, self.high_s, self.prices = stages, low_s, high_s, prices
        shape = (stages.num_layers + 1, 2, len(self.low_s), len(self.prices))
        self._forward_s, self._end_s = np.full(shape, np.inf), np.full(shape, np.inf)
        self._min_usd_per_s = np.full((shape[0], shape[2]), np.inf)
        self.choice: Ints = np.zeros(shape, np.int64)
        """Index of the last stage of each shortest path, by [end, kind, cell, price]."""
        # before the first stage nothing has to end, and without a peak there is no pipeline of the cell
        self._forward_s[0, PEAK], self._end_s[0, PEAK], self._min_usd_per_s[0] = 0.0, 0.0, 0.0
        for end in range(1, stages.num_layers + 1):
            self._solve(end)
        min_usd_per_s = _min_over_higher(self._min_usd_per_s)
        self.min_usd_per_s: Array = min_usd_per_s[:, 0]
        """The least price of any completion in front of each layer."""
        self.whole = Envelope(self._end_s[-1, NO_PEAK], self.prices, self._min_usd_per_s[-1])
        """The envelope of whole pipelines, by cell."""
        self._same_height = Envelope(self._end_s[:, PEAK], self.prices, self._min_usd_per_s)
        higher = _min_over_higher(self._end_s[:, NO_PEAK] + stages.later_grains * self.low_s[:, None])
        self._higher = Envelope(_with_empty_cell(higher), self.prices, _with_empty_cell(min_usd_per_s))
        self._forward = Envelope(_min_over_higher(self._forward_s[:, PEAK]), self.prices, min_usd_per_s)

    def _solve(self, end: int) -> None:
        """Extend the shortest paths by the stages that end at `end`."""
        stages, part = self.stages, self.stages.ending_at(end)
        chosen = np.flatnonzero(stages.height_s[part] <= self.high_s[-1]) + part.start
        if not len(chosen):
            return
        first, height_s = stages.first[chosen], stages.height_s[chosen, None]
        too_high = np.where(height_s <= self.high_s, 0.0, np.inf)
        both_s = stages.forward_sum_s[chosen] + stages.backward_sum_s[chosen]
        own_s = stages.longest_forward_s[chosen] + stages.longest_own_s[chosen]
        slack_s = stages.later_grains * np.maximum(self.low_s - own_s[:, None], 0.0)
        slack_s[first == 0] = 0.0  # the first stage waits for all stations
        front_ends_s = (both_s + stages.get_s[chosen])[:, None] + too_high
        stage_ends_s = (both_s + stages.sync_s[chosen])[:, None] - slack_s
        priced = (stages.usd_per_s[chosen, None] * self.prices)[:, None, :]
        # layers in front of a peak have a peak behind them; stages that are too high never count
        peak, cell = np.nonzero((height_s >= self.low_s) & (height_s <= self.high_s))
        for kind in (NO_PEAK, PEAK):

            def before(values: Array, kind: int = kind) -> Array:
                gathered: Array = values[first, kind]
                if kind == NO_PEAK:
                    gathered[peak, cell] = values[first[peak], PEAK, cell]
                return gathered

            end_s = before(self._end_s)
            end_s += front_ends_s[..., None]
            if stages.num_replicas > 1:
                forward_s = before(self._forward_s)
                own_end_s = stage_ends_s if kind == NO_PEAK else stage_ends_s + slack_s
                np.maximum(end_s, forward_s + own_end_s[..., None], out=end_s)
                forward_s += (stages.forward_sum_s[chosen, None] + too_high)[..., None]
                forward_s += priced
                self._forward_s[end, kind] = forward_s.min(axis=0)
            end_s += priced
            best = end_s.argmin(axis=0)
            self._end_s[end, kind] = np.take_along_axis(end_s, best[None], axis=0)[0]
            self.choice[end, kind] = chosen[best]
        usd_per_s = self._min_usd_per_s[first] + stages.usd_per_s[chosen, None] + too_high
        self._min_usd_per_s[end] = usd_per_s.min(axis=0)

    def roots(self, aim: Aim) -> Array:
        """Lower bounds of whole pipelines by [cell, corner]; the corner of the aim's time limit is the last."""
        more_s = self.stages.later_grains * self.low_s
        return self.whole.values(aim, self.stages.num_replicas, slice(None), more_s, 0 * more_s)

    def of(self, labels: PartialPipelines, aim: Aim, below: float) -> Array:
        """A lower bound for every completion of each partial pipeline.

        Where a simple bound is not below `below`, no closer one is computed.
        """
        num_replicas = self.stages.num_replicas
        min_usd_per_s = labels.usd_per_s + self.min_usd_per_s[labels.first]
        bounds = aim.value(self.fastest_s(labels), min_usd_per_s, num_replicas)
        rows = np.flatnonzero(bounds < below)
        # a stage in front may end last: the pipeline then gets higher, or keeps its height
        open_labels = labels[rows]
        cell, is_peak, same_height_s = self._cells(open_labels)
        closer = self._min_value(open_labels, aim, self._higher, cell + is_peak, open_labels.both_s)
        peaks = np.flatnonzero(is_peak)
        same = self._min_value(open_labels[peaks], aim, self._same_height, cell[peaks], same_height_s[peaks])
        closer[peaks] = np.minimum(closer[peaks], same)
        bounds[rows] = closer
        if num_replicas > 1:  # or a stage behind ends last: the stages in front then add only their forwards
            rows = np.flatnonzero(bounds < below)
            open_labels = labels[rows]
            ended_s = open_labels.ended_s + self.stages.later_grains * open_labels.longest_forward_s
            behind = self._min_value(open_labels, aim, self._forward, self._cells(open_labels)[0], ended_s)
            bounds[rows] = np.maximum(bounds[rows], behind)
        return bounds

    def _min_value(self, labels: PartialPipelines, aim: Aim, envelope: Envelope, cells: Ints, more_s: Array) -> Array:
        rows = (labels.first, cells)
        values = envelope.values(aim, self.stages.num_replicas, rows, more_s, labels.usd_per_s)
        min_value: Array = values.min(axis=-1)
        return min_value

    def fastest_s(self, labels: PartialPipelines) -> Array:
        """Lower bound of the time of every completion, at any rate; infeasible where it is higher than all cells."""
        cell, is_peak, same_height_s = self._cells(labels)
        same = np.where(is_peak, same_height_s + self._same_height.lines[labels.first, cell, 0], np.inf)
        higher = labels.both_s + self._higher.lines[labels.first, cell + is_peak, 0]
        fastest_s: Array = np.where(labels.height_s > self.high_s[-1], INFEASIBLE_S, np.minimum(same, higher))
        return np.minimum(fastest_s, INFEASIBLE_S)

    def _cells(self, labels: PartialPipelines) -> tuple[Ints, Mask, Array]:
        """The cell that each is in or below, whether it is in it, and its time so far if it gets no higher."""
        cell = np.minimum(np.searchsorted(self.high_s, labels.height_s), len(self.high_s) - 1)
        slowest_s = np.maximum(labels.longest_forward_s + labels.longest_backward_s, self.low_s[cell])
        is_peak = labels.height_s >= self.low_s[cell]
        return cell, is_peak, labels.both_s + self.stages.later_grains * slowest_s


def _min_over_higher(values: Array) -> Array:
    """Minimum over each cell and all higher ones."""
    minima: Array = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    return minima


def _with_empty_cell(values: Array) -> Array:
    """Append a cell that holds no pipeline."""
    return np.concatenate([values, np.full_like(values[:, :1], np.inf)], axis=1)


def min_over_pipelines(stages: SizedStages, combine: np.ufunc, values: Array) -> float:
    """Minimum over all pipelines of their stages' values combined; infinite where there is no pipeline."""
    minima = np.full(stages.num_layers + 1, np.inf)
    minima[0] = 0.0
    for end in range(1, stages.num_layers + 1):
        part = stages.ending_at(end)
        minima[end] = combine(minima[stages.first[part]], values[part]).min(initial=np.inf)
    return float(minima[-1])


def wide_bounds(stages: SizedStages, heights_s: Array, num_cells: int, num_prices: int) -> PipelineBounds:
    """Bounds over all heights, with prices from far below to far above time / rate of any pipeline."""
    low_s, high_s = _cut_into_cells(heights_s, num_cells)
    scale_s, max_usd_per_s = float(heights_s[0]) * (stages.later_grains + 1), float(stages.usd_per_s.max())
    if max_usd_per_s <= 0 or scale_s <= 0:
        return PipelineBounds(stages, low_s, high_s, np.zeros(1))
    min_usd_per_s = max(min_over_pipelines(stages, np.add, stages.usd_per_s), 1e-3 * max_usd_per_s)
    min_price = 0.1 * scale_s / (max_usd_per_s * min(stages.num_layers, 64))
    max_price = 30 * scale_s / min_usd_per_s
    prices = np.concatenate([[0.0], np.geomspace(min_price, max_price, num_prices - 1)])
    return PipelineBounds(stages, low_s, high_s, prices)


def closer_bounds(
    bounds: PipelineBounds, aim: Aim, value: float, heights_s: Array, num_cells: int, num_prices: int
) -> PipelineBounds | None:
    """Bounds over what may still hold something better than `value`; None where nothing does."""
    is_open = bounds.roots(aim) < value
    cells = np.flatnonzero(is_open.any(axis=1))
    if not len(cells):
        return None
    is_within = (heights_s >= bounds.low_s[cells[0]]) & (heights_s <= bounds.high_s[cells[-1]])
    if not is_within.any():
        return None
    low_s, high_s = _cut_into_cells(heights_s[is_within], num_cells)
    prices, last = bounds.prices, len(bounds.prices) - 1
    if not last:
        return PipelineBounds(bounds.stages, low_s, high_s, prices)
    # lines c and c + 1 cross at corner c; a time limit cuts one of the lines
    lines = np.flatnonzero(is_open[:, : last + 1].any(axis=0))
    if math.isfinite(aim.max_time_s):
        shifted = bounds.whole.lines[cells] + bounds.stages.later_grains * bounds.low_s[cells, None]
        cutting = ((shifted[:, 1:] - aim.max_time_s) / prices[1:]).argmax(axis=1) + 1
        lines = np.concatenate([lines, cutting])
    # the slopes in between matter; the next lines on both sides keep pruned what is pruned
    first, end = int(lines.min()), min(int(lines.max()) + 1, last)
    min_price = prices[first] if first else 0.3 * prices[1]
    max_price = prices[end] * (3.0 if int(lines.max()) == last else 1.01)
    outer = [0.0, *prices[1:first][-1:], *prices[end + 1 :][:1]]
    inner = np.geomspace(min_price, max_price, num_prices - len(outer))
    return PipelineBounds(bounds.stages, low_s, high_s, np.unique(np.concatenate([outer, inner])))


def _cut_into_cells(heights_s: Array, num_cells: int) -> tuple[Array, Array]:
    """Lowest and highest of the ascending heights in each of some cells of about the same ratio."""
    if len(heights_s) <= num_cells:
        return heights_s, heights_s
    floor_s = max(float(heights_s[0]), 1e-6 * float(heights_s[-1]))
    edges_s = np.geomspace(floor_s, float(heights_s[-1]), num_cells + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(heights_s, edges_s)]))
    starts = starts[starts < len(heights_s)]
    return heights_s[starts], heights_s[np.append(starts[1:], len(heights_s)) - 1]
