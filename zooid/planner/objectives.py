"""Goals: which of two plans is better, by time and money."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zooid.core.errors import InputError
from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Goal
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.front import pareto, recommended

Objective = Callable[[float, float], float]
"""Maps the seconds and dollars of a run to a value to minimise, which never falls as either grows."""

_TINY_USD = 1e-9
"""Added to every cost, so that time still counts if nothing is charged."""


def objective_of(goal: Goal, hour_usd: float | None = None) -> Objective:
    """The objective that a goal minimises. For the balanced goal it is time × money, which only orders the search."""
    if (goal == "weighted") != (hour_usd is not None):
        raise InputError(
            f"the goal is {goal} and an hour is worth {hour_usd}; give the dollars that an hour is worth with the goal "
            "weighted, and with no other goal"
        )
    if hour_usd is not None and not hour_usd > 0:
        raise InputError(f"an hour is worth {hour_usd} dollars; give a number above 0")
    match goal:
        case "fastest":
            return lambda run_s, run_usd: run_s
        case "cheapest":
            return lambda run_s, run_usd: run_usd
        case "weighted":
            return lambda run_s, run_usd: run_usd + (hour_usd or 0.0) * run_s / SECONDS_PER_HOUR
    return lambda run_s, run_usd: run_s * (run_usd + _TINY_USD)


def order_of(plan: Plan, objective: Objective) -> tuple[float, float, float, int, int]:
    """Sort key: the best plan first. Ties go to the faster, then the cheaper plan, fewer members, and less memory."""
    run_s, run_usd = plan.prediction.run_s, plan.prediction.run_usd
    memory_bytes = plan.num_replicas * sum(stage.memory_bytes for stage in plan.stages)
    return objective(run_s, run_usd), run_s, run_usd, plan.num_members, memory_bytes


def plans_on_front(plans: Sequence[Plan]) -> list[Plan]:
    """The Pareto front of plans, fastest first. Of equal plans, the one with fewer members is kept."""
    ordered = sorted(plans, key=lambda plan: order_of(plan, lambda run_s, run_usd: 0.0))
    return [point.plan for point in pareto(map(_point, ordered))]


def best(front: Sequence[Plan], goal: Goal, objective: Objective) -> Plan:
    """Pick from a front by the goal."""
    if goal == "balanced":
        return recommended(list(map(_point, front))).plan
    return min(front, key=lambda plan: order_of(plan, objective))


class _PlanPoint(NamedTuple):
    """A plan as a point of time and money."""

    plan: Plan
    time_s: float
    usd: float


def _point(plan: Plan) -> _PlanPoint:
    return _PlanPoint(plan, plan.prediction.run_s, plan.prediction.run_usd)
