"""The exact search for the partition with the least step time, for every number of stages, with proof.

Hydrozoa (§3.3, Appendix A) tries V evenly spaced bounds for the slowest stage of each direction and is off by up to
2(M − 1)Δ/V. The bounds that matter are the times of stages and cuts that exist, and good partitions meet few of those.
So this search grows partitions from the last stage to the first, as labels at (number of stages, first layer):

    W = Σ (f + b + 2c)      time of one grain
    T = max (f, c)          longest forward; R = max (b, c) is the longest backward
    Z' = max(Z − b − c, (M − 1)R' + D)      how long after the first stage's Σ (b + c) the last all-reduce D ends

A whole chain takes W + (M − 1)T + Z. That is max_j (T^(M)_j + T^(D)_j) of §3.4, and with one replica, D = 0, it is the
runtime of Appendix A.1. A label is pruned when another label of the same first layer dominates it, or when its lower
bound is no better than the incumbent. All numbers of stages are searched side by side, in arrays.

The first pass follows only the most promising labels, which finds good incumbents. Each later pass follows more, until
it leaves out none that could matter; that proves the optimum. If `max_labels` ends the search earlier, the labels left
out bound the gap.
"""

import math
import time
from collections.abc import Collection
from itertools import combinations

import numpy as np

from zooid.core.errors import InputError
from zooid.planner.front import Ints, Mask
from zooid.planner.partition.answer import ROUNDING, BestPartition, Incumbents
from zooid.planner.partition.arrays import ChainArrays, SuffixLabels
from zooid.planner.partition.bounds import PrefixBounds, bottleneck_window
from zooid.planner.partition.problem import Partition, StageTable, partition_of
from zooid.predictor.equations.array_checks import Array

MAX_ENUMERATED = 5_000
"""Up to so many partitions are all enumerated, so that every partition returned is among the best. Beyond, the search
proves only the first; the others are the next best that it met."""
FIRST_LABELS = 8
"""Labels that the first pass follows from level to level, for each number of stages."""
LABEL_GROWTH = 16
"""Factor by which each pass follows more labels than the one before."""
MAX_LABELS = 200_000
"""Labels of the last pass, over all numbers of stages that are searched side by side."""
GRID = 1e-13
"""Labels are compared in steps of this fraction of the whole, so that rounding alone keeps none alive."""
NUM_CELLS = 6
"""Cells of the range of bottlenecks, from the second pass on."""
MAX_NUMBERS = 3_000_000
"""Size of a cell's table, which limits how many numbers of stages are searched side by side."""
MAX_SHIFTS = 48
"""How many labels of the same first layer each label is compared with."""


def best_partitions(table: StageTable, stage_counts: Collection[int], *, max_each: int) -> dict[int, list[Partition]]:
    """The best partitions into each number of stages, best first; none where nothing fits. The first is optimal."""
    num_layers = table.num_layers
    partitions: dict[int, list[Partition]] = {count: [] for count in stage_counts}
    searched = []
    for count in stage_counts:
        if math.comb(num_layers - 1, count - 1) > MAX_ENUMERATED:
            searched.append(count)
        elif count <= num_layers:
            ends = np.array([(*cuts, num_layers) for cuts in combinations(range(1, num_layers), count - 1)])
            steps_s = table.step_s(ends)
            order = np.argsort(steps_s, kind="stable")[:max_each]
            partitions[count] = [partition_of(ends[row]) for row in order if np.isfinite(steps_s[row])]
    if searched:
        for count, answer in search_partitions(table, searched, max_each=max_each).items():
            partitions[count] = [answer.partition, *answer.runners_up]
    return partitions


def smallest_need(needs: Array, num_stages: int) -> Partition:
    """The partition whose largest stage needs the least; `needs` is by [first, end]."""
    num_layers = len(needs) - 1
    stage_needs = np.where(np.triu(np.ones(needs.shape, bool), 1), needs, np.inf)
    prefix_needs = stage_needs[0]  # by end: the largest need of the stages so far
    firsts = []
    for _ in range(num_stages - 1):
        extended = np.maximum(prefix_needs[:, None], stage_needs)
        firsts.append(extended.argmin(axis=0))
        prefix_needs = extended.min(axis=0)
    ends = [num_layers]
    for first in reversed(firsts):
        ends.append(int(first[ends[-1]]))
    return partition_of(np.array(ends[::-1]))


def search_partitions(
    table: StageTable, stage_counts: Collection[int] | None = None, *, max_each: int = 1, max_labels: int = MAX_LABELS
) -> dict[int, BestPartition]:
    """The best partition into each number of stages; into every possible number if none are given.

    Numbers of stages for which nothing fits are left out. An answer holds at most `max_each` partitions, of which only
    the first is proven.
    """
    begin_s = time.perf_counter()
    counts = range(1, table.num_layers + 1) if stage_counts is None else sorted(set(stage_counts))
    if any(count < 1 for count in counts) or max_each < 1 or max_labels < 1:
        raise InputError(
            f"the search is asked for {max_each} partition(s) into {', '.join(map(str, counts))} stages with "
            f"{max_labels} label(s); ask for at least 1 of each"
        )
    possible = [count for count in counts if count <= table.num_layers]
    if not possible:
        return {}
    chain = ChainArrays(table)
    prefixes = PrefixBounds(chain, max(possible))
    incumbents = {count: Incumbents(table, max_each) for count in possible if np.isfinite(prefixes.grain_s[count, -1])}
    for count, incumbent in incumbents.items():
        incumbent.add(prefixes.balanced(count))
    width, num_cells = min(FIRST_LABELS, max_labels), 1
    while unproven := [count for count, incumbent in incumbents.items() if not incumbent.is_proven]:
        at_once = max(1, min(MAX_NUMBERS // (unproven[-1] * chain.num_layers), MAX_LABELS // width))
        for begin in range(0, len(unproven), at_once):
            batch = unproven[begin : begin + at_once]
            _Pass(chain, prefixes, batch, [incumbents[count] for count in batch], num_cells).run(width)
        if width == max_labels:
            break
        width, num_cells = min(width * LABEL_GROWTH, max_labels), NUM_CELLS
    wall_s = time.perf_counter() - begin_s
    return {count: incumbent.answer(wall_s) for count, incumbent in incumbents.items()}


class _Pass:
    """One pass over all levels, for several cases; a case is one total number of stages."""

    def __init__(
        self,
        chain: ChainArrays,
        prefixes: PrefixBounds,
        counts: list[int],
        incumbents: list[Incumbents],
        num_cells: int,
    ) -> None:
        self._chain = chain
        self._prefixes = prefixes
        self._incumbents = incumbents
        self._counts = np.array(counts)
        self._window = bottleneck_window(chain, prefixes, self._counts, incumbents, num_cells)
        self._prune_s = np.array([incumbent.prune_s for incumbent in incumbents])
        self._min_forward_s = prefixes.longest_forward_s[self._counts, -1]
        self._min_backward_s = prefixes.longest_backward_s[self._counts, -1]
        # how much later than the first stage any stage still to come can end because of its all-reduce
        late_s = chain.reduce_s - prefixes.backward_sum_s.min(axis=0)[:, None]
        late_s[0] = -np.inf  # the first stage itself
        allowed = self._window.allowed
        self._max_late_s = np.maximum.accumulate(np.where(allowed, late_s, -np.inf).max(axis=1), axis=1)
        self._min_reduce_s = np.where(allowed[:, 0], chain.reduce_s[0], np.inf).min(axis=1)

    def run(self, width: int) -> None:
        """Follow up to `width` labels of each case from level to level. The labels left out give the lower bound."""
        num_cases = len(self._counts)
        left_out_s = np.full(num_cases, np.inf)
        cases, zeros = np.arange(num_cases), np.zeros(num_cases)
        whole = np.full(num_cases, self._chain.num_layers)
        labels = SuffixLabels(cases, whole, cases, zeros, zeros, zeros, zeros - np.inf)
        levels: list[SuffixLabels] = []
        for placed in range(1, int(self._counts[-1]) + 1):
            levels.append(labels)
            labels, bound_s = self._extended(labels, placed)
            self._add_complete(labels, levels, placed)
            is_open = (bound_s < self._prune_s[labels.case]) & (self._counts[labels.case] > placed)
            labels, bound_s = labels[is_open], bound_s[is_open]
            kept = self._undominated(labels, placed)
            labels = _most_promising(labels[kept], bound_s[kept], width, left_out_s)
        for incumbent, bound in zip(self._incumbents, left_out_s.tolist(), strict=True):
            incumbent.raise_lower_bound(bound)

    def _extended(self, labels: SuffixLabels, placed: int) -> tuple[SuffixLabels, Array]:
        """Extend every label by every stage that may precede it; also returns the lower bounds of the results."""
        missing = self._counts[labels.case] - placed
        low = np.maximum(labels.first - self._window.longest[labels.case, labels.first], missing)
        high = np.where(missing > 0, labels.first, 1)
        numbers = np.maximum(high - low, 0)
        parent = np.repeat(np.arange(len(low)), numbers)
        first = np.arange(len(parent)) + (low - (np.cumsum(numbers) - numbers))[parent]
        end = labels.first[parent]
        chain = self._chain
        backward_s = np.maximum(labels.backward_s[parent], chain.longest_backward_s[first, end])
        reduced_s = chain.later_grains * backward_s + chain.reduce_s[first, end]
        extended = SuffixLabels(
            case=labels.case[parent],
            first=first,
            parent=parent,
            grain_s=labels.grain_s[parent] + chain.grain_s[first, end],
            forward_s=np.maximum(labels.forward_s[parent], chain.longest_forward_s[first, end]),
            backward_s=backward_s,
            after_s=np.maximum(labels.after_s[parent] - chain.backward_sum_s[first, end], reduced_s),
        )
        return extended, self._bound_s(extended, missing[parent])

    def _bound_s(self, labels: SuffixLabels, missing: Ints) -> Array:
        """Lower bound of the step: every term of the closed form with the least that the missing stages add to it."""
        later_grains, before, case = self._chain.later_grains, (missing, labels.first), labels.case
        forward_s, backward_s = self._final_longest_s(labels, before)
        bottleneck_s = np.maximum(forward_s + backward_s, self._window.min_bottleneck_s[case])
        prefix_s = np.full(len(missing), np.inf)
        for cell in self._window.cells:
            grain_s = cell.grain_s[case, missing, labels.first]
            cell_s = grain_s + later_grains * np.maximum(bottleneck_s, cell.low_s[case])
            cell_s[bottleneck_s > cell.high_s[case] * (1 + ROUNDING)] = np.inf
            np.minimum(prefix_s, cell_s, out=prefix_s)
        reduced_s = self._prefixes.forward_sum_s[before] + labels.after_s
        if self._chain.has_reduces:
            own_s = self._prefixes.reduced_s[before] + later_grains * labels.backward_s
            reduced_s = np.maximum(reduced_s, np.maximum(own_s, self._prefixes.late_reduced_s[before]))
        bound_s: Array = labels.grain_s + np.maximum(prefix_s, reduced_s + later_grains * forward_s)
        return bound_s

    def _final_longest_s(self, labels: SuffixLabels, before: tuple[Ints, Ints]) -> tuple[Array, Array]:
        """Lower bounds of T and R of the complete partition."""
        forward_s = np.maximum(self._min_forward_s[labels.case], self._prefixes.longest_forward_s[before])
        backward_s = np.maximum(self._min_backward_s[labels.case], self._prefixes.longest_backward_s[before])
        return np.maximum(labels.forward_s, forward_s), np.maximum(labels.backward_s, backward_s)

    def _add_complete(self, labels: SuffixLabels, levels: list[SuffixLabels], placed: int) -> None:
        """Add the best complete partitions to the incumbents."""
        case = int(np.searchsorted(self._counts, placed))
        if case == len(self._counts) or self._counts[case] != placed:
            return
        (complete,) = np.nonzero((labels.case == case) & np.isfinite(labels.grain_s))
        forward_s = self._chain.later_grains * labels.forward_s[complete]
        steps_s = labels.grain_s[complete] + forward_s + labels.after_s[complete]
        for index in complete[np.argsort(steps_s, kind="stable")[: self._incumbents[case].max_kept]]:
            ends = []
            label = labels.parent[index]
            for level in reversed(levels):
                ends.append(level.first[label])
                label = level.parent[label]
            self._incumbents[case].add(np.array(ends))

    def _undominated(self, labels: SuffixLabels, placed: int) -> Ints:
        """Indices of the labels that no other label of the same case and first layer dominates.

        Values are raised to their common lower bound at the end, since differences below it do not count. R counts
        twice: at the end, and for when a stage in between can begin its all-reduce, which matters only if that is long.
        """
        later_grains, case = self._chain.later_grains, labels.case
        before = self._counts[case] - placed, labels.first
        forward_s, backward_s = self._final_longest_s(labels, before)
        reduce_s = self._min_reduce_s[case]
        min_after_s = later_grains * backward_s + reduce_s + self._prefixes.backward_sum_s[before]
        after_s = np.maximum(labels.after_s, min_after_s)
        if later_grains:
            late_s = np.maximum(self._max_late_s[case, labels.first] - reduce_s, 0.0) / later_grains
            floor_s = np.maximum(self._min_backward_s[case], self._prefixes.longest_backward_s[before]) - late_s
            backward_s = np.maximum(labels.backward_s, floor_s)
        else:
            forward_s = backward_s = np.zeros(len(case))
        grid_s = GRID * self._prune_s[case]
        keys = [np.rint(values / grid_s) for values in (after_s, backward_s, forward_s, labels.grain_s)]
        group = case * (self._chain.num_layers + 1) + labels.first
        order = np.lexsort((*keys, group))
        return order[~_is_dominated(group[order], [key[order] for key in keys])]


def _is_dominated(group: Ints, keys: list[Array]) -> Mask:
    """Whether an earlier row of the same group is nowhere worse; rows are sorted by group and then by keys.

    Only the nearest earlier rows are compared, so that some dominated rows may be kept.
    """
    is_dominated = np.zeros(len(group), bool)
    for shift in range(1, MAX_SHIFTS + 1):
        is_worse = group[shift:] == group[:-shift]
        if not is_worse.any():
            break
        for key in keys:
            is_worse &= key[:-shift] <= key[shift:]
        is_dominated[shift:] |= is_worse
    return is_dominated


def _most_promising(labels: SuffixLabels, bound_s: Array, width: int, left_out_s: Array) -> SuffixLabels:
    """The labels of each case with the least lower bounds; `left_out_s` keeps the least bound of the others."""
    order = np.lexsort((bound_s, labels.case))
    case = labels.case[order]
    begins = np.searchsorted(case, np.arange(len(left_out_s)))
    is_kept = np.arange(len(order)) - begins[case] < width
    np.minimum.at(left_out_s, case[~is_kept], bound_s[order[~is_kept]])
    return labels[np.sort(order[is_kept])]
