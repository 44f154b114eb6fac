"""What a search keeps of the fleets that it meets, and which it need not look at any more."""

import bisect
import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zooid.planner.fleets.problem import FleetProblem
from zooid.planner.fleets.tables import Ints
from zooid.predictor.equations.array_checks import Array

Mask = NDArray[np.bool_]


class Keeper(Protocol):
    """Fleets are given as rows of counts, with what a run takes and costs on each."""

    def worth(self, run_s: Array, usd: Array) -> Mask:
        """Whether fleets that take and cost at least this could still be kept."""

    def rank(self, run_s: Array, usd: Array) -> Array:
        """The least is looked at first."""

    def offer(self, counts: Ints, run_s: Array, usd: Array) -> None: ...


class Best:
    """The best few within the limits, by the goal; the other of time and cost decides between equals."""

    def __init__(self, problem: FleetProblem, number: int = 1) -> None:
        self._is_fast = problem.goal == "fastest"
        self._limits = _limits(problem)
        self._number = number
        self.kept: list[tuple[float, float, int, tuple[int, ...]]] = []

    def worth(self, run_s: Array, usd: Array) -> Mask:
        within: Mask = (run_s <= self._limits[0]) & (usd <= self._limits[1])
        if len(self.kept) < self._number:
            return within
        first, second = (run_s, usd) if self._is_fast else (usd, run_s)
        last_first, last_second, *_ = self.kept[-1]
        better: Mask = (first < last_first) | ((first == last_first) & (second < last_second))
        return within & better

    def rank(self, run_s: Array, usd: Array) -> Array:
        return run_s if self._is_fast else usd

    def offer(self, counts: Ints, run_s: Array, usd: Array) -> None:
        within = self.worth(run_s, usd)
        counts, run_s, usd = counts[within], run_s[within], usd[within]
        first, second = (run_s, usd) if self._is_fast else (usd, run_s)
        for row in np.lexsort((second, first))[: self._number]:
            found = (float(first[row]), float(second[row]), int(counts[row].sum()), tuple(counts[row].tolist()))
            if found not in self.kept:
                bisect.insort(self.kept, found)
                del self.kept[self._number :]

    @property
    def counts(self) -> list[tuple[int, ...]]:
        return [found[-1] for found in self.kept]


class Anything(Best):
    """Whichever fleet is within the limits: nothing is worth looking at when there is one."""

    def worth(self, run_s: Array, usd: Array) -> Mask:
        return super().worth(run_s, usd) & (not self.kept)


class Nearest:
    """The one that exceeds deadline and budget by the smallest factor, whichever it exceeds more."""

    def __init__(self, problem: FleetProblem) -> None:
        self._limits = _limits(problem)
        self._excess = math.inf
        self.found: tuple[float, float] | None = None
        """Its time and cost."""

    def worth(self, run_s: Array, usd: Array) -> Mask:
        return np.asarray(self.rank(run_s, usd) < self._excess)

    def rank(self, run_s: Array, usd: Array) -> Array:
        return np.maximum(run_s / self._limits[0], usd / self._limits[1])

    def offer(self, counts: Ints, run_s: Array, usd: Array) -> None:
        excess = self.rank(run_s, usd)
        row = int(np.argmin(excess))
        if excess[row] < self._excess:
            self._excess, self.found = float(excess[row]), (float(run_s[row]), float(usd[row]))


class Front:
    """Those within the limits to which no other is as fast and as cheap."""

    def __init__(self, problem: FleetProblem) -> None:
        self._limits = _limits(problem)
        self._run_s: Array = np.zeros(0)
        self._usd: Array = np.zeros(0)
        self._counts: NDArray[Any] = np.zeros((0, len(problem.vms)), np.int64)

    def worth(self, run_s: Array, usd: Array) -> Mask:
        within = (run_s <= self._limits[0]) & (usd <= self._limits[1])
        faster = np.searchsorted(self._run_s, run_s, side="right")
        cheapest = np.concatenate([[math.inf], self._usd])[faster]
        return np.asarray(within & (usd < cheapest))

    def rank(self, run_s: Array, usd: Array) -> Array:
        return run_s

    def offer(self, counts: Ints, run_s: Array, usd: Array) -> None:
        new = self.worth(run_s, usd)
        times, costs = np.concatenate([self._run_s, run_s[new]]), np.concatenate([self._usd, usd[new]])
        rows = np.concatenate([self._counts, counts[new]])
        order = np.lexsort((costs, times))
        cheapest = np.minimum.accumulate(np.concatenate([[math.inf], costs[order]]))[:-1]
        kept = order[costs[order] < cheapest]
        self._run_s, self._usd, self._counts = times[kept], costs[kept], rows[kept]

    @property
    def counts(self) -> list[tuple[int, ...]]:
        return [tuple(row) for row in self._counts.tolist()]


def _limits(problem: FleetProblem) -> tuple[float, float]:
    deadline_s, budget_usd = problem.deadline_s, problem.budget_usd
    return math.inf if deadline_s is None else deadline_s, math.inf if budget_usd is None else budget_usd
