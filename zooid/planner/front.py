"""Time against money: what of many points is worth keeping, and which of them to take.

Anything with a time and a cost is a point: an allocation of the closed form, a simulated plan.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from zooid.core.errors import InputError

LEAST_WORTH = 0.8
"""FuncPipe's δ (§5.1): a point has to bring this much speed for what it costs more."""


class Point(Protocol):
    """Seconds and dollars of one way to do the same work."""

    @property
    def time_s(self) -> float: ...

    @property
    def usd(self) -> float: ...


AnyPoint = TypeVar("AnyPoint", bound=Point)


def pareto(points: Iterable[AnyPoint], tolerance: float = 0.0) -> list[AnyPoint]:
    """Those that no other point beats in one of time and cost without being worse in the other, fastest first.

    Of points that are the same in both, the first one given is kept. A point whose cost is lower by no more than a
    share of `tolerance` counts as the same: sums in another order differ in their last digits.
    """
    kept: list[AnyPoint] = []
    for point in sorted(points, key=lambda each: (each.time_s, each.usd)):
        if not kept or point.usd < kept[-1].usd * (1 - tolerance):
            kept.append(point)
    return kept


def worth(point: Point, cheapest: Point) -> float:
    """δ = (t_cheapest/t − 1) / (c/c_cheapest − 1) (FuncPipe §5.1): speed gained for every share of cost added.

    Infinite where a faster point costs no more; 0 where neither differs.
    """
    faster = cheapest.time_s / point.time_s - 1 if point.time_s > 0 else float(cheapest.time_s > 0) * float("inf")
    dearer = point.usd / cheapest.usd - 1 if cheapest.usd > 0 else float(point.usd > 0) * float("inf")
    if dearer <= 0:
        return float("inf") if faster > 0 else 0.0
    return faster / dearer


def recommended(points: Sequence[AnyPoint], least_worth: float = LEAST_WORTH) -> AnyPoint:
    """The fastest point that is worth its cost, δ ≥ `least_worth`; the cheapest where none is (FuncPipe §5.1)."""
    front = pareto(points)
    if not front:
        raise InputError("there is no point to recommend; give at least one")
    cheapest = front[-1]
    return next((point for point in front[:-1] if worth(point, cheapest) >= least_worth), cheapest)


def best_weighted(points: Sequence[AnyPoint], usd_weight: float, s_weight: float) -> AnyPoint:
    """The point with the least α₁ · cost + α₂ · time (FuncPipe (3a)); of equal ones the fastest."""
    if not points:
        raise InputError("there is no point to pick from; give at least one")
    return min(points, key=lambda point: (usd_weight * point.usd + s_weight * point.time_s, point.time_s))
