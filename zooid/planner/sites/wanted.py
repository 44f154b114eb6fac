"""What a search between sites keeps of all that it finds: the best few for a goal, or all that are not beaten."""

import math

import numpy as np
from numpy.typing import NDArray

from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.sites.model import Counts
from zooid.planner.sites.problem import SiteProblem
from zooid.predictor.equations.array_checks import Array


class _Limits:
    """Deadline and budget, with room for the last digit."""

    def __init__(self, problem: SiteProblem) -> None:
        self._deadline_s = (problem.deadline_s or math.inf) * (1 + 1e-12)
        self._budget_usd = (problem.budget_usd or math.inf) * (1 + 1e-12)

    def meets(self, time_s: Array, usd: Array) -> NDArray[np.bool_]:
        within: NDArray[np.bool_] = (time_s <= self._deadline_s) & (usd <= self._budget_usd)
        return within


class Best:
    """The k best for the goal with different members; where that is the same, the other of time and cost decides."""

    def __init__(self, problem: SiteProblem, num_choices: int) -> None:
        self._goal, self._limits = problem.goal, _Limits(problem)
        self._usd_per_s = (problem.hour_usd or 0.0) / SECONDS_PER_HOUR
        self._num_choices = num_choices
        self._found: dict[tuple[int, ...], tuple[float, float, int]] = {}
        self._worst = (math.inf, math.inf)

    def _values(self, time_s: Array, usd: Array) -> tuple[Array, Array]:
        if self._goal == "fastest":
            return time_s, usd
        return (usd, time_s) if self._goal == "cheapest" else (usd + self._usd_per_s * time_s, time_s)

    def add(self, counts: Counts, method: NDArray[np.int64], time_s: Array, usd: Array) -> None:
        kept = np.flatnonzero(self._limits.meets(time_s, usd) & self.may_hold(time_s, usd))
        first, second = self._values(time_s[kept], usd[kept])
        for at in np.lexsort((second, first))[
            : 4 * self._num_choices
        ]:  # no more of one call can stay, whatever follows
            row = kept[at]
            key = tuple(counts[row].tolist())
            value = (float(first[at]), float(second[at]), int(method[row]))
            if key not in self._found or value < self._found[key]:
                self._found[key] = value
        ranked = sorted(self._found.items(), key=lambda item: item[1])[: self._num_choices]
        self._found = dict(ranked)
        if len(ranked) == self._num_choices:
            self._worst = ranked[-1][1][:2]

    def may_hold(self, time_s: Array, usd: Array) -> NDArray[np.bool_]:
        first, second = self._values(time_s, usd)
        better: NDArray[np.bool_] = (first < self._worst[0]) | ((first == self._worst[0]) & (second < self._worst[1]))
        return better & self._limits.meets(time_s, usd)

    def order(self, time_s: Array, usd: Array) -> Array:
        return self._values(time_s, usd)[0]

    @property
    def choices(self) -> list[tuple[tuple[int, ...], int]]:
        """Best first."""
        return [(counts, value[2]) for counts, value in self._found.items()]

    @property
    def value(self) -> float:
        """Of the best."""
        return next(iter(self._found.values()))[0]


class Front:
    """Choices that are not beaten, by rising time and so by falling cost."""

    def __init__(self, problem: SiteProblem) -> None:
        self._limits = _Limits(problem)
        self.counts: Counts = np.zeros((0, len(problem.offers)), np.int64)
        self.method = np.zeros(0, np.int64)
        self.time_s: Array = np.zeros(0)
        self.usd: Array = np.zeros(0)

    def add(self, counts: Counts, method: NDArray[np.int64], time_s: Array, usd: Array) -> None:
        kept = self.may_hold(time_s, usd)
        counts, method = np.concatenate([self.counts, counts[kept]]), np.concatenate([self.method, method[kept]])
        time_s, usd = np.concatenate([self.time_s, time_s[kept]]), np.concatenate([self.usd, usd[kept]])
        order = np.lexsort((usd, time_s))
        cheapest = np.minimum.accumulate(usd[order])
        order = order[np.concatenate([[True], usd[order][1:] < cheapest[:-1]])] if len(order) else order
        self.counts, self.method, self.time_s, self.usd = counts[order], method[order], time_s[order], usd[order]

    def may_hold(self, time_s: Array, usd: Array) -> NDArray[np.bool_]:
        within = self._limits.meets(time_s, usd)
        if not len(self.time_s):
            return within
        faster = np.searchsorted(self.time_s, time_s, side="right") - 1
        return within & ((faster < 0) | (usd < self.usd[np.maximum(faster, 0)]))

    def order(self, time_s: Array, usd: Array) -> Array:
        if not len(self.time_s):
            return time_s
        together: Array = time_s / self.time_s[0] + usd / max(float(self.usd[-1]), 1e-9)
        return together
