"""Pareto fronts of time and money, and the point of a front to recommend.

A point is anything that has a time and a cost, such as an allocation of a closed form or a simulated plan.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from zooid.core.errors import InputError
from zooid.core.plans.search_result import Proof
from zooid.predictor.equations.array_checks import Array

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

LEAST_WORTH = 0.8
"""FuncPipe's threshold for δ (§5.1): the speed that a point must bring for its extra cost."""


class Point(Protocol):
    """The seconds and dollars of one way to do the work."""

    @property
    def time_s(self) -> float: ...

    @property
    def usd(self) -> float: ...


AnyPoint = TypeVar("AnyPoint", bound=Point)


def pareto(points: Iterable[AnyPoint], tolerance: float = 0.0) -> list[AnyPoint]:
    """Return the points that no other point dominates, fastest first.

    Of points that are equal in time and cost, the first one given is kept. A cost that is lower by at most the fraction
    `tolerance` counts as equal, because sums in another order differ in their last digits.
    """
    front: list[AnyPoint] = []
    for point in sorted(points, key=lambda each: (each.time_s, each.usd)):
        if not front or point.usd < front[-1].usd * (1 - tolerance):
            front.append(point)
    return front


def worth(point: Point, cheapest: Point) -> float:
    """Return δ = (t_cheapest/t − 1) / (c/c_cheapest − 1), the speed gained for the cost added (FuncPipe §5.1).

    It is infinite where a faster point costs no more, and 0 where neither differs.
    """
    faster = cheapest.time_s / point.time_s - 1 if point.time_s > 0 else float(cheapest.time_s > 0) * float("inf")
    dearer = point.usd / cheapest.usd - 1 if cheapest.usd > 0 else float(point.usd > 0) * float("inf")
    if dearer <= 0:
        return float("inf") if faster > 0 else 0.0
    return faster / dearer


def recommended(points: Sequence[AnyPoint], least_worth: float = LEAST_WORTH) -> AnyPoint:
    """Return the fastest point with δ ≥ `least_worth`, or the cheapest where there is none (FuncPipe §5.1)."""
    front = pareto(points)
    if not front:
        raise InputError("there is no point to recommend; give at least one")
    cheapest = front[-1]
    return next((point for point in front[:-1] if worth(point, cheapest) >= least_worth), cheapest)


class RunningFront:
    """The Pareto front of the candidates that a search has met so far, as arrays.

    Its points are the incumbents: a candidate whose lower bounds they dominate is pruned.
    """

    def __init__(self, num_columns: int) -> None:
        self.rows: Ints = np.zeros((0, num_columns), np.int64)
        """Integers that describe each point, fastest point first."""
        self.time_s: Array = np.zeros(0)
        self.usd: Array = np.zeros(0)

    def can_improve(self, time_s: Array, usd: Array) -> Mask:
        """Whether candidates with these times and costs, or with these lower bounds, can be on the front."""
        cheapest_as_fast = np.concatenate([[np.inf], self.usd])[np.searchsorted(self.time_s, time_s, side="right")]
        return np.asarray(usd < cheapest_as_fast)

    def add(self, rows: Ints, time_s: Array, usd: Array) -> None:
        """Keep the candidates that nothing dominates, and drop the points that they dominate."""
        is_new = self.can_improve(time_s, usd)
        rows = np.concatenate([self.rows, rows[is_new]])
        time_s, usd = np.concatenate([self.time_s, time_s[is_new]]), np.concatenate([self.usd, usd[is_new]])
        order = np.lexsort((usd, time_s))
        cheapest_before = np.minimum.accumulate(np.concatenate([[np.inf], usd[order]]))[:-1]
        order = order[usd[order] < cheapest_before]
        self.rows, self.time_s, self.usd = rows[order], time_s[order], usd[order]


def front_proof(start_s: float, *, is_complete: bool) -> Proof:
    """Return the proof of a front whose search began at `start_s` of `time.perf_counter`.

    An incomplete search proves nothing about the points that it did not reach, so that its gap is 1.
    """
    wall_s = time.perf_counter() - start_s
    return Proof(status="optimal" if is_complete else "bounded", gap=0.0 if is_complete else 1.0, wall_s=wall_s)
