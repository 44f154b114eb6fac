"""Where to cut a chain of layers: for every number of stages, the partition with the least step, and the proof.

Hydrozoa (§3.3, Appendix A) tries V evenly spaced bounds for the slowest stage of each direction and is off by up to
2(M − 1)Δ/V. The bounds that matter are the times of stages and cuts that exist, and few of those can be met by anything
good. So partitions are grown from the last stage to the first, as labels at (stages placed, first layer placed):

    W = Σ (f + b + 2c)      what one grain takes
    T = max (f, c)          the slowest of the forward, R = max (b, c) that of the backward
    Z' = max(Z − b − c, (M − 1)R' + D)      how long after the first stage's Σ (b + c) the last all-reduce D ends

A whole chain takes W + (M − 1)T + Z, which is max_j (T^(M)_j + T^(D)_j) of §3.4, and with one replica (D = 0) the
runtime of Appendix A.1. A label goes when another of the same place is nowhere worse, or when no completion can beat
the best partition known. All numbers of stages are searched side by side, in arrays.

At first only the most promising labels are followed, which finds good partitions; more of them from pass to pass, until
none that could matter was left out. That proves the optimum; where `most_labels` ends it before, what was left out
bounds the gap.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from zooid.core.errors import InputError
from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.planner.cuts.prefixes import Prefixes, Stages
from zooid.planner.cuts.table import Partition, StageTable, partition_of
from zooid.planner.cuts.windows import ROUNDING, find_windows
from zooid.predictor.equations.array_checks import Array

Ints: TypeAlias = NDArray[np.int64]

FIRST_LABELS = 8
"""Followed from each level to the next, for each number of stages, in the first pass."""
MORE_LABELS = 16
"""Times as many in every other pass."""
MOST_LABELS = 200_000
"""In the last pass, and of all numbers of stages that are searched side by side."""
GRID = 1e-13
"""Labels are compared in steps of this part of the whole, so that rounding alone keeps none alive."""
NUM_CELLS = 6
"""Into which the range of the slowest stages is divided, from the second pass on: see `windows`."""
MOST_NUMBERS = 3_000_000
"""Of a table of windows: so many numbers of stages are searched side by side as that holds."""
MAX_SHIFTS = 48
"""How many labels of the same place each one is compared with."""


class Cut(Record, frozen=True, kw_only=True):
    """The best partition into one number of stages."""

    partition: Partition
    step_s: float
    others: tuple[Partition, ...]
    """Further good ones, best first: those found on the way, and those that differ from the best by one layer."""
    proof: Proof


def cut_into(table: StageTable, num_stages: int, *, most: int = 1, most_labels: int = MOST_LABELS) -> Cut | None:
    """The partition into so many stages with the least step; None where no partition fits."""
    return cut_into_each(table, [num_stages], most=most, most_labels=most_labels).get(num_stages)


def cut_into_each(
    table: StageTable, stage_counts: Collection[int] | None = None, *, most: int = 1, most_labels: int = MOST_LABELS
) -> dict[int, Cut]:
    """The best partition for every number of stages; for all up to that of layers if none are given.

    Numbers of stages for which nothing fits are left out. `most` is how many partitions are returned for each at most,
    of which only the first is proven.
    """
    begin_s = time.perf_counter()
    counts = range(1, table.num_layers + 1) if stage_counts is None else sorted(set(stage_counts))
    if any(count < 1 for count in counts) or most < 1 or most_labels < 1:
        raise InputError(
            f"{most} partition(s) into {', '.join(map(str, counts))} stages with {most_labels} label(s) are asked for; "
            "ask for at least 1 of each"
        )
    possible = [count for count in counts if count <= table.num_layers]
    if not possible:
        return {}
    stages = Stages(table)
    prefixes = Prefixes(stages, max(possible))
    found = {count: _Found(table, most) for count in possible if np.isfinite(prefixes.grain_s[count, -1])}
    for count, known in found.items():
        known.add(prefixes.balanced(count))
    _search(stages, prefixes, found, most_labels)
    wall_s = time.perf_counter() - begin_s
    return {count: known.cut(wall_s) for count, known in found.items()}


def _search(stages: Stages, prefixes: Prefixes, found: "dict[int, _Found]", most_labels: int) -> None:
    """Pass after pass, until everything is proven or as many labels are followed as are allowed."""
    width, num_cells = min(FIRST_LABELS, most_labels), 1
    while still_open := [count for count, known in found.items() if not known.is_proven]:
        at_once = max(1, min(MOST_NUMBERS // (still_open[-1] * stages.num_layers), MOST_LABELS // width))
        for begin in range(0, len(still_open), at_once):
            some = still_open[begin : begin + at_once]
            _Pass(stages, prefixes, some, [found[count] for count in some], num_cells).run(width)
        if width == most_labels:
            break
        width, num_cells = min(width * MORE_LABELS, most_labels), NUM_CELLS


class _Found:
    """The best partitions into one number of stages, so far."""

    def __init__(self, table: StageTable, most: int) -> None:
        self._table = table
        self.most = most
        self._steps_s: dict[Partition, float] = {}
        self._lower_bound_s = 0.0

    def add(self, ends: Ints) -> None:
        self._steps_s[partition_of(ends)] = float(self._table.step_s(ends))
        if len(self._steps_s) > 4 * self.most:
            self._steps_s = dict(self._ranked()[: self.most])

    @property
    def best_s(self) -> float:
        return min(self._steps_s.values())

    @property
    def enough_s(self) -> float:
        """What can at best take this long is no better."""
        return self.best_s * (1 - ROUNDING)

    @property
    def is_proven(self) -> bool:
        return self._lower_bound_s >= self.enough_s

    def nothing_below(self, bound_s: float) -> None:
        """Nothing takes less than this, or than the best that is known."""
        self._lower_bound_s = max(self._lower_bound_s, min(bound_s, self.best_s))

    def cut(self, wall_s: float) -> Cut:
        self._add_neighbours()
        (best, step_s), *others = self._ranked()[: self.most]
        proof = Proof(
            status="optimal" if self.is_proven else "bounded",
            gap=0.0 if self.is_proven else (step_s - self._lower_bound_s) / step_s,
            wall_s=wall_s,
        )
        return Cut(partition=best, step_s=step_s, others=tuple(cut for cut, _ in others), proof=proof)

    def _add_neighbours(self) -> None:
        """Of the best, each cut moved by one layer."""
        if self.most == 1:
            return
        best = np.array([end for _, end in self._ranked()[0][0]])
        moves = np.concatenate([np.eye(len(best), dtype=np.int64)[:-1] * step for step in (-1, 1)])
        ends = best + moves
        ends = ends[(np.diff(ends, axis=-1, prepend=0) > 0).all(axis=-1)]
        for neighbour, step_s in zip(ends, self._table.step_s(ends).tolist(), strict=True):
            if np.isfinite(step_s):
                self._steps_s[partition_of(neighbour)] = step_s

    def _ranked(self) -> list[tuple[Partition, float]]:
        return sorted(self._steps_s.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class _Labels:
    """Suffixes of the chain, each for one of the numbers of stages."""

    which: Ints
    """Index of that number."""
    first: Ints
    """The first layer that is placed."""
    parent: Ints
    """Index of the label in the level before, to which a stage was added."""
    grain_s: Array
    """W"""
    forward_s: Array
    """T"""
    backward_s: Array
    """R"""
    after_s: Array
    """Z"""

    def of(self, some: Ints | NDArray[np.bool_]) -> "_Labels":
        return _Labels(
            self.which[some],
            self.first[some],
            self.parent[some],
            self.grain_s[some],
            self.forward_s[some],
            self.backward_s[some],
            self.after_s[some],
        )


class _Pass:
    """One pass over all levels, for some numbers of stages: a case each."""

    def __init__(
        self, stages: Stages, prefixes: Prefixes, counts: list[int], found: list[_Found], num_cells: int
    ) -> None:
        self._stages = stages
        self._prefixes = prefixes
        self._found = found
        self._counts = np.array(counts)
        self._windows = find_windows(
            stages,
            prefixes,
            self._counts,
            lambda: np.array([known.best_s for known in found]),
            lambda case, ends: found[case].add(ends),
            num_cells,
        )
        self._enough_s = np.array([known.enough_s for known in found])
        self._least_forward_s = prefixes.forward_s[self._counts, -1]
        self._least_backward_s = prefixes.backward_s[self._counts, -1]
        self._note_reduces()

    def _note_reduces(self) -> None:
        """How much later than a first stage any stage that still comes can end because of its reduce."""
        before_s = self._prefixes.passing_s.min(axis=0)
        late_s = self._stages.reduce_s - before_s[:, None]
        late_s[0] = -np.inf  # the first stage itself
        allowed = self._windows.allowed
        worst_s = np.where(allowed, late_s, -np.inf).max(axis=1)
        self._excess_s = np.maximum.accumulate(worst_s, axis=1)
        self._least_reduce_s = np.where(allowed[:, 0], self._stages.reduce_s[0], np.inf).min(axis=1)

    def run(self, width: int) -> None:
        """Follow up to `width` labels from level to level; the least that any left out could have led to is noted."""
        left_out_s = np.full(len(self._counts), np.inf)
        nobody = np.arange(len(self._counts))
        nothing = np.zeros(len(self._counts))
        whole = np.full(len(self._counts), self._stages.num_layers)
        labels = _Labels(nobody, whole, nobody, nothing, nothing, nothing, nothing - np.inf)
        levels: list[_Labels] = []
        for placed in range(1, int(self._counts[-1]) + 1):
            levels.append(labels)
            labels, bound_s = self._grown(labels, placed)
            self._finish(labels, levels, placed)
            is_open = (bound_s < self._enough_s[labels.which]) & (self._counts[labels.which] > placed)
            labels, bound_s = labels.of(is_open), bound_s[is_open]
            best = self._undominated(labels, placed)
            labels, bound_s = labels.of(best), bound_s[best]
            labels = _most_promising(labels, bound_s, width, left_out_s)
        for known, bound in zip(self._found, left_out_s.tolist(), strict=True):
            known.nothing_below(bound)

    def _grown(self, labels: _Labels, placed: int) -> tuple[_Labels, Array]:
        """Every label with every stage that can come before it, and the least that the whole can then take."""
        missing = self._counts[labels.which] - placed
        low = np.maximum(self._windows.earliest[labels.which, labels.first], missing)
        high = np.where(missing > 0, labels.first, 1)
        numbers = np.maximum(high - low, 0)
        parent = np.repeat(np.arange(len(low)), numbers)
        first = np.arange(len(parent)) + (low - (np.cumsum(numbers) - numbers))[parent]
        end, which = labels.first[parent], labels.which[parent]
        stages, others = self._stages, self._stages.others
        forward_s = np.maximum(labels.forward_s[parent], stages.forward_s[first, end])
        backward_s = np.maximum(labels.backward_s[parent], stages.backward_s[first, end])
        grown = _Labels(
            which=which,
            first=first,
            parent=parent,
            grain_s=labels.grain_s[parent] + stages.grain_s[first, end],
            forward_s=forward_s,
            backward_s=backward_s,
            after_s=np.maximum(
                labels.after_s[parent] - stages.passing_s[first, end], others * backward_s + stages.reduce_s[first, end]
            ),
        )
        return grown, self._bound_s(grown, missing[parent])

    def _bound_s(self, labels: _Labels, missing: Ints) -> Array:
        """Of each part of the closed form, the least that the missing stages add to it."""
        others, before = self._stages.others, (missing, labels.first)
        forward_s, backward_s = self._slowest_s(labels, before)
        both_s = np.maximum(forward_s + backward_s, self._windows.least_both_s[labels.which])
        bound_s = np.full(len(missing), np.inf)
        for cell in self._windows.cells:
            grain_s = cell.grain_s[labels.which, missing, labels.first]
            within_s = grain_s + others * np.maximum(both_s, cell.low_s[labels.which])
            within_s[both_s > cell.high_s[labels.which] * (1 + ROUNDING)] = np.inf
            np.minimum(bound_s, within_s, out=bound_s)
        later_s = self._prefixes.sending_s[before] + labels.after_s
        if self._stages.has_reduces:
            reduced_s = self._prefixes.reduced_s[before] + others * labels.backward_s
            later_s = np.maximum(later_s, np.maximum(reduced_s, self._prefixes.later_s[before]))
        whole_s: Array = labels.grain_s + np.maximum(bound_s, later_s + others * forward_s)
        return whole_s

    def _slowest_s(self, labels: _Labels, before: tuple[Ints, Ints]) -> tuple[Array, Array]:
        """T and R as they will at least be in the end."""
        forward_s = np.maximum(self._least_forward_s[labels.which], self._prefixes.forward_s[before])
        backward_s = np.maximum(self._least_backward_s[labels.which], self._prefixes.backward_s[before])
        return np.maximum(labels.forward_s, forward_s), np.maximum(labels.backward_s, backward_s)

    def _finish(self, labels: _Labels, levels: list[_Labels], placed: int) -> None:
        """Keep the best of the partitions that are complete."""
        at = int(np.searchsorted(self._counts, placed))
        if at == len(self._counts) or self._counts[at] != placed:
            return
        (complete,) = np.nonzero((labels.which == at) & np.isfinite(labels.grain_s))
        ends_s = labels.grain_s[complete] + self._stages.others * labels.forward_s[complete] + labels.after_s[complete]
        for index in complete[np.argsort(ends_s, kind="stable")[: self._found[at].most]]:
            firsts = []
            label = labels.parent[index]
            for level in reversed(levels):
                firsts.append(level.first[label])
                label = level.parent[label]
            self._found[at].add(np.array(firsts))

    def _undominated(self, labels: _Labels, placed: int) -> Ints:
        """Which labels no other of the same place is at least as good as.

        What the end will be at least is the same for all: below it, differences do not count. R counts twice: in the
        end, and for when a stage in between can begin its reduce, which matters only if that reduce is long.
        """
        others, which = self._stages.others, labels.which
        before = self._counts[which] - placed, labels.first
        forward_s, backward_s = self._slowest_s(labels, before)
        reduce_s = self._least_reduce_s[which]
        after_s = np.maximum(labels.after_s, others * backward_s + reduce_s + self._prefixes.passing_s[before])
        if others:
            late_s = np.maximum(self._excess_s[which, labels.first] - reduce_s, 0.0) / others
            least_s = np.maximum(self._least_backward_s[which], self._prefixes.backward_s[before]) - late_s
            backward_s = np.maximum(labels.backward_s, least_s)
        else:
            forward_s = backward_s = np.zeros(len(which))
        grid_s = GRID * self._enough_s[which]
        keys = [np.rint(values / grid_s) for values in (after_s, backward_s, forward_s, labels.grain_s)]
        place = which * (self._stages.num_layers + 1) + labels.first
        order = np.lexsort((*keys, place))
        return order[~_is_dominated(place[order], [key[order] for key in keys])]


def _is_dominated(place: Ints, keys: list[Array]) -> NDArray[np.bool_]:
    """Whether one that stands before it is nowhere worse; they stand in the order of `place`, and then of the keys.

    The nearest before it are looked at, and so some may be kept that need not be.
    """
    is_dominated = np.zeros(len(place), bool)
    for shift in range(1, MAX_SHIFTS + 1):
        same = place[shift:] == place[:-shift]
        if not same.any():
            break
        for key in keys:
            same &= key[:-shift] <= key[shift:]
        is_dominated[shift:] |= same
    return is_dominated


def _most_promising(labels: _Labels, bound_s: Array, width: int, left_out_s: Array) -> _Labels:
    """Those with the least bounds, for each number of stages; the least of the others is noted."""
    order = np.lexsort((bound_s, labels.which))
    which = labels.which[order]
    begins = np.searchsorted(which, np.arange(len(left_out_s)))
    is_kept = np.arange(len(order)) - begins[which] < width
    np.minimum.at(left_out_s, which[~is_kept], bound_s[order[~is_kept]])
    return labels.of(np.sort(order[is_kept]))
