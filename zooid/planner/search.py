"""The search for a plan: closed forms propose candidates, lower bounds prune them, and the simulator decides.

Candidates come from exact optimisers of the papers' closed forms. Each has lower bounds of its simulated time and cost,
and candidates are simulated in the order of these bounds. A candidate is pruned if a simulated plan is at least as fast
and as cheap as its bounds. Once all are simulated or pruned, the front is the Pareto front of all candidates.
"""

import heapq
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from zooid.core.errors import HopelessPlan, PlanError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.search_result import Candidate, Goal, Proof, Search, Verdict
from zooid.core.units import format_bytes
from zooid.planner.drafts import Draft, draft, evaluate
from zooid.planner.families import MAX_PARTITIONS, Family, families, grain_sizes
from zooid.planner.fitted_replicas import fitted_replicas
from zooid.planner.infeasible import (
    broken_by_bounds,
    broken_limit,
    closest_to_fitting,
    no_layout,
    too_large,
    what_binds,
)
from zooid.planner.market import Market
from zooid.planner.member_sizes import speed_name
from zooid.planner.mixed import mixed_plans
from zooid.planner.objectives import Objective, best, objective_of, order_of, plans_on_front
from zooid.planner.reasons import left_out_in_words, reasons
from zooid.predictor.equations.array_checks import Array

MAX_ACTIONS = 60_000
"""Number of actions to simulate over all candidates, about two seconds. The rest stays open, as the proof says."""
MIN_SIMULATED = 12
"""Number of candidates to simulate, however large they are."""
SLACK, SLACK_ABOVE = 0.01, 300
"""If there are more candidates than 300, those that can be better by less than 1 % are pruned, as the proof says."""
NUM_MIXED_GRAINS = 2
"""Number of grain sizes for which mixed members are searched, unless the number of stages is required."""
ROUNDING = 1e-12
_PATIENCE = 5
"""Factor on the actions to simulate as long as no plan is within the limits."""
_REST = 0.25
"""Fraction of the actions to simulate for the rest of the front, once the pick is proven."""


@dataclass(frozen=True)
class _Outcome:
    """What became of a candidate."""

    candidate: Family | Draft
    verdict: Verdict
    plan: Plan | None = None
    """The simulated plan, if it was simulated."""
    reason: str = ""
    """Why the candidate is infeasible."""


def search(
    market: Market,
    limits: Limits,
    goal: Goal = "balanced",
    hour_usd: float | None = None,
    *,
    also: Sequence[Plan] = (),
) -> Search:
    """Find the best plan within the limits. PlanError says which limit no plan can meet.

    Ties go to fewer members, then to less memory. `also` are other plans to consider. All that fit memory are
    simulated, so the pick is never worse than any of them. They need to meet deadline and budget, but no other limit.
    """
    begin_s = time.perf_counter()
    objective = objective_of(goal, hour_usd)
    extra = [draft(plan, market) for plan in also]
    candidates: list[Family | Draft] = list(families(market, limits))
    if len(market.offers) > 1:
        promising = sorted(candidates, key=lambda candidate: _promise(candidate, objective))
        sizes = list(dict.fromkeys(candidate.plan.grain_size for candidate in promising)) or grain_sizes(market.profile)
        candidates += fitted_replicas(market, limits)
        mixed_sizes = sizes if limits.num_stages else sizes[:NUM_MIXED_GRAINS]
        candidates += [draft(plan, market) for plan in mixed_plans(market, limits, mixed_sizes)]
    if not candidates and not extra:
        raise PlanError(no_layout(market, limits, min(grain_sizes(market.profile))))
    target = None if goal == "balanced" else objective
    outcomes = _explore(candidates, extra, market, limits, objective, target)
    feasible = _feasible(outcomes)
    if not feasible:
        raise PlanError(_why_infeasible(candidates, extra, outcomes, market, limits))
    front = plans_on_front(feasible)
    pick = best(front, goal, objective)
    others = [plan for plan in feasible if _kind(plan) != _kind(pick)]
    runner_up = min(others, key=lambda plan: order_of(plan, objective), default=None)
    beyond = [outcome.plan for outcome in outcomes if outcome.plan is not None and outcome.reason]
    return Search(
        goal=goal,
        hour_usd=hour_usd,
        pick=pick,
        runner_up=runner_up,
        front=tuple(front),
        candidates=tuple(_record(outcome, pick, front) for outcome in outcomes),
        left_out=market.left_out,
        num_simulated=sum(outcome.plan is not None for outcome in outcomes),
        proof=_proof(outcomes, pick, target, time.perf_counter() - begin_s),
        reasons=(
            *reasons(pick, runner_up, beyond, limits, objective),
            *(left_out_in_words(left_out.offers, left_out.reason) for left_out in market.left_out),
        ),
    )


def _explore(
    candidates: Sequence[Family | Draft],
    extra: Sequence[Draft],
    market: Market,
    limits: Limits,
    objective: Objective,
    target: Objective | None = None,
) -> list[_Outcome]:
    """Simulate the extra drafts, then take candidates in the order of their promise: prune, expand or simulate each.

    The exploration ends when no candidate is left, or after enough actions. With a target, these are fewer from when
    no candidate left can improve on the incumbent.
    """
    outcomes = [_lacking(draft) if draft.missing_bytes > 0 else _simulate(draft, market, limits) for draft in extra]
    points = [(plan.prediction.run_s, plan.prediction.run_usd) for plan in _feasible(outcomes)]
    count = itertools.count()
    heap = [(_promise(candidate, objective), next(count), candidate) for candidate in candidates]
    heapq.heapify(heap)
    num_simulated = num_actions = 0
    max_actions: float = MAX_ACTIONS
    slack = 1 + SLACK * (len(candidates) > SLACK_ABOVE)
    while heap:
        _, _, candidate = heapq.heappop(heap)
        bound_s, bound_usd = candidate.lower_bound
        if target is not None and max_actions == MAX_ACTIONS and points:
            is_proven = min(itertools.starmap(target, points)) <= target(bound_s, bound_usd)
            max_actions = num_actions + _REST * MAX_ACTIONS if is_proven else max_actions
        patience = max_actions if points else _PATIENCE * MAX_ACTIONS
        if candidate.missing_bytes > 0:
            outcomes.append(_lacking(candidate))
        elif reason := broken_by_bounds(bound_s, bound_usd, limits):
            outcomes.append(_Outcome(candidate, "beyond a limit", reason=reason))
        elif any(run_s <= slack * bound_s and run_usd <= slack * bound_usd for run_s, run_usd in points):
            outcomes.append(_Outcome(candidate, "bounded out"))
        elif isinstance(candidate, Family) and candidate.partition_bound_s is None:
            sharpened = candidate.sharpened()
            heapq.heappush(heap, (_promise(sharpened, objective), next(count), sharpened))
        elif num_actions > patience and num_simulated >= MIN_SIMULATED:
            outcomes.append(_Outcome(candidate, "open"))
        elif isinstance(candidate, Family):
            for expanded in candidate.drafts():
                heapq.heappush(heap, (_promise(expanded, objective), next(count), expanded))
        else:
            outcome = _simulate(candidate, market, limits)
            outcomes.append(outcome)
            num_simulated += 1
            num_actions += candidate.num_actions
            points += [(plan.prediction.run_s, plan.prediction.run_usd) for plan in _feasible([outcome])]
    return outcomes + _other_partitions(outcomes, candidates, market, limits)


def _other_partitions(
    outcomes: Sequence[_Outcome], candidates: Sequence[Family | Draft], market: Market, limits: Limits
) -> list[_Outcome]:
    """Simulate the closed form's next best partitions of the families on the front."""
    kinds = {(_kind(plan), plan.grain_size) for plan in plans_on_front(_feasible(outcomes))}
    seen = {outcome.candidate.plan for outcome in outcomes if isinstance(outcome.candidate, Draft)}
    return [
        _simulate(draft, market, limits)
        for family in candidates
        if isinstance(family, Family) and (_kind(family.plan), family.plan.grain_size) in kinds
        for draft in family.drafts(MAX_PARTITIONS)
        if draft.plan not in seen and draft.missing_bytes <= 0
    ]


def _kind(plan: Plan) -> tuple[object, ...]:
    """Plans of one kind differ at most in cuts, schedule, grains, and in memory that makes members no faster."""
    by_name = {offer.name: offer for offer in plan.offers}
    return tuple(speed_name(by_name[name]) for name in _offer_names(plan)), plan.layout, plan.transport, plan.num_copies


def _offer_names(plan: Plan) -> tuple[str, ...]:
    return plan.replica_offers or tuple(stage.offer for stage in plan.stages)


def _feasible(outcomes: Sequence[_Outcome]) -> list[Plan]:
    """The simulated plans that meet all limits."""
    return [outcome.plan for outcome in outcomes if outcome.plan is not None and not outcome.reason]


def _lacking(candidate: Family | Draft) -> _Outcome:
    return _Outcome(candidate, "too large", reason=f"it lacks {format_bytes(candidate.missing_bytes)} of memory")


def _simulate(draft: Draft, market: Market, limits: Limits) -> _Outcome:
    try:
        plan = evaluate(draft, market)
    except HopelessPlan as error:
        return _Outcome(draft, "hopeless", reason=str(error))
    reason = broken_limit(plan, limits)
    return _Outcome(draft, "beyond a limit" if reason else "dominated", plan, reason)


def _promise(candidate: Family | Draft, objective: Objective) -> tuple[float, int, int, int]:
    """Sort key of the lower bound. Ties go to fewer members, less memory, and smaller grains.

    Small grains divide more evenly among members that come and go.
    """
    plan = candidate.plan
    memory_bytes = sum(stage.memory_bytes for stage in plan.stages)
    return objective(*candidate.lower_bound), plan.num_members, memory_bytes, plan.grain_size


def _why_infeasible(
    candidates: Sequence[Family | Draft],
    extra: Sequence[Draft],
    outcomes: Sequence[_Outcome],
    market: Market,
    limits: Limits,
) -> str:
    """Say which smallest change of the limits would make a plan feasible."""
    if all(outcome.verdict == "too large" for outcome in outcomes):
        return too_large(closest_to_fitting([outcome.candidate for outcome in outcomes]), market)
    unlimited = structs.replace(limits, deadline_s=None, budget_usd=None)
    explored = _explore(candidates, extra, market, unlimited, objective_of("balanced"))
    if not _feasible(explored):
        return next(outcome.reason for outcome in explored if outcome.verdict == "hopeless")
    return what_binds(_feasible(explored), limits)


def _record(outcome: _Outcome, pick: Plan, front: Sequence[Plan]) -> Candidate:
    """The candidate as it is stored, with its final verdict."""
    plan, prediction = outcome.candidate.plan, outcome.plan.prediction if outcome.plan is not None else None
    bound_s, bound_usd = outcome.candidate.lower_bound
    verdict = outcome.verdict
    if outcome.plan is not None and any(outcome.plan is other for other in front):
        verdict = "pick" if outcome.plan is pick else "front"
    return Candidate(
        layout=plan.layout,
        offers=_offer_names(plan),
        num_members=plan.num_members,
        grain_size=plan.grain_size,
        schedule=plan.schedule,
        ahead=plan.ahead,
        transport=plan.transport,
        run_s=bound_s if prediction is None else prediction.run_s,
        run_usd=bound_usd if prediction is None else prediction.run_usd,
        is_simulated=prediction is not None,
        verdict=verdict,
        reason=outcome.reason,
    )


def _proof(outcomes: Sequence[_Outcome], pick: Plan, target: Objective | None, wall_s: float) -> Proof:
    """Prove how much better a pruned or open candidate could be, since none is better than its lower bound.

    With a target, the gap is that of the pick. Without, it is the largest gap in time and cost at once to the front.
    """
    bounds = [outcome.candidate.lower_bound for outcome in outcomes if outcome.verdict in ("open", "bounded out")]
    if target is not None:
        value = target(pick.prediction.run_s, pick.prediction.run_usd)
        gap = max((1 - target(*bound) / value for bound in bounds), default=0.0) if value > 0 else 0.0
    else:
        predictions = [plan.prediction for plan in _feasible(outcomes)]
        points = np.array([(prediction.run_s, prediction.run_usd) for prediction in predictions])
        gap = max((_gap_to_points(points, bound) for bound in bounds), default=0.0)
    return Proof(status="bounded" if gap > ROUNDING else "optimal", gap=gap if gap > ROUNDING else 0.0, wall_s=wall_s)


def _gap_to_points(points: Array, bound: tuple[float, float]) -> float:
    """Fraction by which the nearest point is worse than a lower bound, in time or in cost."""
    worse = np.ones(len(points))
    for values, value in zip(points.T, bound, strict=True):
        worse = np.maximum(worse, values / value if value > 0 else np.where(values > 0, np.inf, 1.0))
    return 1 - 1 / float(worse.min())
