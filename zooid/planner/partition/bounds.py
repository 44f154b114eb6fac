"""Lower bounds for completions of partial partitions, which prune the search.

`PrefixBounds` bounds each term of the step time by itself. The terms conflict, which it does not see: a smaller
bottleneck T + R, the longest forward plus the longest backward, costs more messages. So the range of T + R is divided
into cells. In a cell no stage is longer than the cell's upper end allows, and T + R is at least its lower end. A
dynamic program finds the least time of one grain. Cells that cannot beat the incumbent are pruned, the others divided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zooid.planner.front import Ints, Mask
from zooid.planner.partition.answer import ROUNDING, Incumbents
from zooid.planner.partition.arrays import ChainArrays
from zooid.predictor.equations.array_checks import Array


class PrefixBounds:
    """Minima over all partitions of the layers before `end` into some stages, each array by [num_stages, end].

    - `grain_s`: Σ (f + b + 2c), plus the first stage's all-reduce
    - `forward_sum_s`, `backward_sum_s`: Σ (f + c), Σ (b + c)
    - `longest_forward_s`, `longest_backward_s`, `bottleneck_s`: the largest max(f, c), max(b, c), and sum of these two
    - `reduced_s`: when the last all-reduce ends: `grain_s` of its stage and those behind it, Σ (f + c) of those in
      front, and the all-reduce; `late_reduced_s` adds the stage's own (M − 1) max(b, c)

    Each minimum is taken by itself. Where nothing fits, sums are infinite and the longest times are 0.
    """

    def __init__(self, chain: ChainArrays, max_stages: int) -> None:
        unless_fits = np.where(chain.fits, 0.0, np.inf)
        both_s = chain.longest_forward_s + chain.longest_backward_s
        sums = unless_fits + np.stack([chain.grain_s, chain.forward_sum_s, chain.backward_sum_s])
        maxima = unless_fits + np.stack([chain.longest_forward_s, chain.longest_backward_s, both_s])
        reduce_s, waits_s = chain.reduce_s, chain.later_grains * chain.longest_backward_s
        reduce_ends_s = np.stack([reduce_s, reduce_s + waits_s]) + chain.grain_s
        num_ends = chain.num_layers + 1
        minima = np.full((max_stages + 1, 8, num_ends), np.inf)
        minima[0, :, 0] = 0.0
        self._balanced_first = np.zeros((max_stages + 1, num_ends), np.int64)
        for count in range(1, max_stages + 1):
            before = minima[count - 1, :, :, None]
            summed = before[:3] + sums
            if count == 1:
                summed[0] += reduce_s
            summed.min(axis=1, out=minima[count, :3])
            longest = np.maximum(before[3:6], maxima)
            longest.min(axis=1, out=minima[count, 3:6])
            self._balanced_first[count] = longest[2].argmin(axis=0)
            np.maximum(before[6:] + chain.grain_s, before[1] + reduce_ends_s).min(axis=1, out=minima[count, 6:])
        self.grain_s, self.forward_sum_s, self.backward_sum_s = minima[:, 0], minima[:, 1], minima[:, 2]
        longest_s = np.where(np.isfinite(minima[:, 3:6]), minima[:, 3:6], 0.0)  # M − 1 = 0 times infinity is no number
        self.longest_forward_s, self.longest_backward_s = longest_s[:, 0], longest_s[:, 1]
        self.bottleneck_s = longest_s[:, 2]
        self.reduced_s, self.late_reduced_s = minima[:, 6], minima[:, 7]

    def balanced(self, num_stages: int) -> Ints:
        """Ends of the stages of the partition with the smallest bottleneck."""
        ends = [self._balanced_first.shape[1] - 1]
        for count in range(num_stages, 1, -1):
            ends.append(int(self._balanced_first[count, ends[-1]]))
        return np.array(ends[::-1])


@dataclass(frozen=True)
class BottleneckCell:
    """A range of T + R for each case; a case is one total number of stages."""

    low_s: Array
    high_s: Array
    grain_s: Array
    """`PrefixBounds.grain_s` within the cell, by [case, num_stages, end]; infinite for cases that are pruned."""


@dataclass(frozen=True)
class BottleneckWindow:
    """The stages and bottlenecks with which a partition can still beat the incumbents."""

    cells: list[BottleneckCell]
    allowed: Mask
    """Whether a stage is allowed, by [case, first, end]."""
    longest: Ints
    """Number of layers of the longest allowed stage by [case, end]."""
    min_bottleneck_s: Array
    """Lower bound of T + R by case."""


def bottleneck_window(
    chain: ChainArrays, prefixes: PrefixBounds, counts: Ints, incumbents: Sequence[Incumbents], num_cells: int
) -> BottleneckWindow:
    """Find the window of every case; `counts` are the cases in ascending order.

    The partitions that the dynamic programs find become incumbents.
    """
    num_cases = len(counts)
    if not chain.later_grains:  # then the bottleneck does not count
        zeros = np.zeros(num_cases)
        grain_s = np.broadcast_to(prefixes.grain_s, (num_cases, *prefixes.grain_s.shape))
        allowed = np.broadcast_to(chain.fits, (num_cases, *chain.fits.shape))
        return BottleneckWindow([BottleneckCell(zeros, zeros + np.inf, grain_s)], allowed, _longest(allowed), zeros)

    def best_s() -> Array:
        return np.array([incumbent.best_s for incumbent in incumbents])

    floors = prefixes.longest_forward_s[counts, -1], prefixes.longest_backward_s[counts, -1]
    low_s = np.maximum(floors[0] + floors[1], prefixes.bottleneck_s[counts, -1])
    high_s = np.maximum((best_s() - prefixes.grain_s[counts, -1]) / chain.later_grains, low_s)
    for parts in (1, num_cells, num_cells):
        edges_s = [low_s + (high_s - low_s) * part / parts for part in range(parts)] + [high_s]
        cells = []
        for cell_low_s, cell_high_s in pairwise(edges_s):
            longest = _longest(_allowed(chain, cell_high_s, floors))
            grain_s = _min_grain_s(chain, counts, longest)
            for incumbent, ends in zip(incumbents, _cheapest(chain, counts, longest, grain_s), strict=True):
                if ends is not None:
                    incumbent.add(ends)
            cells.append(BottleneckCell(cell_low_s, cell_high_s, grain_s))
        low_s, high_s = _prune_cells(chain, counts, cells, best_s())
        if not high_s.any():
            break
    allowed = _allowed(chain, high_s, floors)
    return BottleneckWindow(cells, allowed, _longest(allowed), low_s)


def _prune_cells(chain: ChainArrays, counts: Ints, cells: list[BottleneckCell], best_s: Array) -> tuple[Array, Array]:
    """Make `grain_s` infinite where a cell cannot beat the incumbent. Returns the range of the other cells."""
    cases = np.arange(len(counts))
    low_s, high_s = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    for cell in cells:
        grain_s = cell.grain_s[cases, counts, -1]
        is_open = grain_s + chain.later_grains * cell.low_s < best_s * (1 - ROUNDING)
        cell.grain_s[~is_open] = np.inf
        max_s = np.minimum(cell.high_s, (best_s * (1 + ROUNDING) - grain_s) / chain.later_grains)
        low_s = np.where(is_open, np.minimum(low_s, cell.low_s), low_s)
        high_s = np.where(is_open, np.maximum(high_s, max_s), high_s)
    is_range = high_s >= low_s
    return np.where(is_range, low_s, 0.0), np.where(is_range, high_s, 0.0)


def _allowed(chain: ChainArrays, bottleneck_s: Array, floors: tuple[Array, Array]) -> Mask:
    """Whether a stage keeps T + R within `bottleneck_s`, given that T and R are at least `floors`."""
    max_s = (bottleneck_s * (1 + ROUNDING))[:, None, None]
    min_forward_s, min_backward_s = (floor[:, None, None] for floor in floors)
    allowed: Mask = (
        chain.fits
        & (chain.longest_forward_s <= max_s - min_backward_s)
        & (chain.longest_backward_s <= max_s - min_forward_s)
        & (chain.longest_forward_s + chain.longest_backward_s <= max_s)
    )
    return allowed


def _longest(allowed: Mask) -> Ints:
    return np.where(allowed.any(axis=1), np.arange(allowed.shape[-1]) - allowed.argmax(axis=1), 0)


def _min_grain_s(chain: ChainArrays, counts: Ints, longest: Ints) -> Array:
    """`PrefixBounds.grain_s` by [case, num_stages, end], without the stages that are longer than `longest`.

    Many stages are short stages, so that all cases together take about L³ steps.
    """
    num_ends = chain.num_layers + 1
    # longest stage of each case and of all cases with more stages
    longest_of_case = np.maximum.accumulate(longest.max(axis=1)[::-1])[::-1]
    grain_s = np.full((len(counts), int(counts[-1]) + 1, num_ends), np.inf)
    grain_s[:, 0, 0] = 0.0
    for placed in range(1, int(counts[-1]) + 1):
        begin = int(np.searchsorted(counts, placed))
        before, after = grain_s[begin:, placed - 1], grain_s[begin:, placed]
        for length in range(1, int(longest_of_case[begin]) + 1):
            end = begin + int(np.searchsorted(-longest_of_case[begin:], -length, side="right"))
            stage_s = np.diagonal(chain.grain_s, length)
            if placed == 1:
                stage_s = stage_s + np.diagonal(chain.reduce_s, length)
            extended_s = before[: end - begin, :-length] + stage_s
            extended_s[longest[begin:end, length:] < length] = np.inf
            np.minimum(after[: end - begin, length:], extended_s, out=after[: end - begin, length:])
    return grain_s


def _cheapest(chain: ChainArrays, counts: Ints, longest: Ints, grain_s: Array) -> list[Ints | None]:
    """Ends of the stages of a partition that takes `grain_s` in each case; None where there is none."""
    num_cases = len(counts)
    if not longest.any():
        return [None] * num_cases
    lengths = np.arange(1, int(longest.max()) + 1)
    ends = np.full((num_cases, int(counts[-1])), chain.num_layers)
    for num_behind in range(int(counts[-1]) - 1):  # the first stage needs no choice: it begins at layer 0
        (cases,) = np.nonzero(counts > num_behind + 1)
        stage = counts[cases] - 1 - num_behind
        end = ends[cases, stage]
        first = np.maximum(end[:, None] - lengths, 0)
        extended_s = grain_s[cases[:, None], stage[:, None], first] + chain.grain_s[first, end[:, None]]
        extended_s[longest[cases, end][:, None] < lengths] = np.inf
        ends[cases, stage - 1] = first[np.arange(len(cases)), extended_s.argmin(axis=1)]
    exists = np.isfinite(grain_s[np.arange(num_cases), counts, -1])
    return [ends[case, : counts[case]] if exists[case] else None for case in range(num_cases)]
