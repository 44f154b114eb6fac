"""A time and its spread, learned from repeated measurements: a law with two constants, corrected by trees.

The law holds for any all-reduce that keeps its links busy, with n members and c concurrent all-reduces of s bytes each:

    t = a · 2(n−1) + b · c · 2(n−1)/n · s        a: seconds a round, b: seconds a byte

Trees alone are constant between the sizes that they have seen, yet most sizes in use were never measured. The law alone
knows nothing of a library's buffers and changes of algorithm. So the trees learn the ratio of the measured time to the
law's, which hardly changes from one size to the next.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zooid.core.errors import PlanError

LOW, MEDIAN, HIGH = 0.1, 0.5, 0.9
_COVERED = HIGH - LOW
_NUM_FOLDS = 5
_NUM_TREES = 60
_PARAMETERS = {
    "objective": "quantile",
    "learning_rate": 0.1,
    "num_leaves": 8,
    "min_data_in_leaf": 8,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Measurements as columns."""

    num_bytes: Numbers
    num_members: Numbers
    concurrency: Numbers
    took_s: Numbers
    weights: Numbers

    def __len__(self) -> int:
        return len(self.took_s)

    def those(self, chosen: NDArray[np.bool_]) -> "Rows":
        columns = (self.num_bytes, self.num_members, self.concurrency, self.took_s, self.weights)
        return Rows(*(column[chosen] for column in columns))

    @property
    def settings(self) -> NDArray[np.intp]:
        """A number for the setting of each row, from 0 on; repeats of a setting share it."""
        keys = np.column_stack([self.num_bytes, self.num_members, self.concurrency])
        _, numbers = np.unique(keys, axis=0, return_inverse=True)
        return numbers.reshape(-1)


class SpreadModel:
    """Low, median and high time of a setting: one of ten repeats is faster than low, and one is slower than high."""

    def __init__(self, rows: Rows) -> None:
        self._core = _Core(rows)
        self._margin = _margin(rows)

    def times_s(self, num_bytes: int, num_members: int, concurrency: int) -> tuple[float, float, float]:
        asked = Rows(*(np.array([float(value)]) for value in (num_bytes, num_members, concurrency, 1.0, 1.0)))
        low, median, high = self._core.logs(asked)[:, 0]
        times_s = sorted([low - self._margin, median, high + self._margin])
        return math.exp(times_s[0]), math.exp(times_s[1]), math.exp(times_s[2])


class _Core:
    """The law and three sets of trees, which predict the logarithm of seconds."""

    def __init__(self, rows: Rows) -> None:
        self._law = _fit_law(rows)
        excess = np.log(rows.took_s / (_terms(rows) @ self._law))
        self._trees = [_fit_trees(rows, excess, quantile) for quantile in (LOW, MEDIAN, HIGH)]

    def logs(self, rows: Rows) -> Numbers:
        """Logarithms of the time, by quantile and row."""
        law_s = np.log(_terms(rows) @ self._law)
        return np.array([law_s + trees.predict(_features(rows)) for trees in self._trees])


def _terms(rows: Rows) -> Numbers:
    """The factors of the law's two constants."""
    rounds = 2 * (rows.num_members - 1)
    return np.column_stack([rounds, rounds / rows.num_members * rows.num_bytes * rows.concurrency])


def _fit_law(rows: Rows) -> Numbers:
    """The constants with the smallest squared relative error, none of which is negative.

    All subsets of terms are tried. With errors relative to the measured time, an outlier counts no more than any row.
    """
    terms = _terms(rows) / rows.took_s[:, None] * np.sqrt(rows.weights)[:, None]
    target = np.sqrt(rows.weights)
    best, min_error = np.zeros(terms.shape[1]), math.inf
    for count in range(1, terms.shape[1] + 1):
        for chosen in itertools.combinations(range(terms.shape[1]), count):
            constants = np.zeros(terms.shape[1])
            constants[list(chosen)] = np.linalg.lstsq(terms[:, chosen], target)[0]
            error = float(np.sum((terms @ constants - target) ** 2))
            if constants.min() >= 0 and error < min_error:
                best, min_error = constants, error
    return best


def _features(rows: Rows) -> Numbers:
    """Inputs of the trees. The last is the size of a ring's messages, at which buffers show up for any n."""
    pieces = rows.num_bytes / rows.num_members
    return np.column_stack([np.log2(rows.num_bytes), rows.num_members, rows.concurrency, np.log2(pieces)])


def _fit_trees(rows: Rows, excess: Numbers, quantile: float) -> Any:
    lightgbm = _lightgbm()
    data = lightgbm.Dataset(_features(rows), excess, weight=rows.weights, params={"verbosity": -1})
    return lightgbm.train({**_PARAMETERS, "alpha": quantile}, data, num_boost_round=_NUM_TREES)


def _margin(rows: Rows) -> float:
    """The logarithm by which the low and high quantiles must move apart, or may move together if it is negative.

    Trees fit the noise of their own samples, and know little about settings between them. So settings are left out in
    turn; the margin is the one that would have covered eight of ten of their repeats (conformalised quantile
    regression).
    """
    settings = rows.settings
    misses, weights = [], []
    for fold in range(_NUM_FOLDS):
        left_out = settings % _NUM_FOLDS == fold
        low, _, high = _Core(rows.those(~left_out)).logs(rows.those(left_out))
        measured = np.log(rows.took_s[left_out])
        misses.append(np.maximum(low - measured, measured - high))
        weights.append(rows.weights[left_out])
    return _weighted_quantile(np.concatenate(misses), np.concatenate(weights), _COVERED)


def _weighted_quantile(values: Numbers, weights: Numbers, quantile: float) -> float:
    """The smallest value such that it and all below it have this fraction of the weight.

    >>> _weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order]) / np.sum(weights)
    return float(values[order][np.searchsorted(cumulative, quantile)])


def _lightgbm() -> Any:
    """Import LightGBM only when something is learned, because that takes time."""
    try:
        import lightgbm
    except OSError as error:
        raise PlanError(
            f"LightGBM cannot be loaded ({error}); it needs OpenMP: install libgomp, on Debian apt-get install libgomp1"
        ) from error
    return lightgbm
