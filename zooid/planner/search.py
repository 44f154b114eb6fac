"""The search for a plan: closed forms propose candidates, lower bounds prune them, and the simulator decides.

Candidates come from exact optimisers of the papers' closed forms. Each has lower bounds of its simulated time and cost,
and candidates are simulated in the order of these bounds. A candidate is pruned if a simulated plan is at least as fast
and as cheap as its bounds. Once all are simulated or pruned, the front is the Pareto front of all candidates.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from zooid.core.errors import HopelessPlan, PlanError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.search_result import Candidate, Goal, LeftOut, Proof, Search, Verdict
from zooid.core.units import format_bytes
from zooid.planner.drafts import Draft, draft, evaluate
from zooid.planner.families import MAX_PARTITIONS, Family, grain_sizes
from zooid.planner.infeasible import (
    broken_by_bounds,
    broken_limit,
    closest_to_fitting,
    no_layout,
    too_large,
    what_binds,
)
from zooid.planner.lots import Lot, lots
from zooid.planner.market import Market
from zooid.planner.member_sizes import speed_name
from zooid.planner.objectives import Objective, best, objective_of, order_of, plans_on_front
from zooid.planner.promising import ENDS, Queue, promise
from zooid.planner.reasons import left_out_in_words, reasons
from zooid.predictor.equations.array_checks import Array

MAX_ACTIONS = 60_000
"""Number of actions to simulate over all candidates, about two seconds. The rest stays open, as the proof says."""
MIN_SIMULATED = 12
"""Number of candidates to simulate, however large they are."""
SLACKS = ((300, 0.01), (3000, 0.05))
"""If there are more candidates than this, those that can be better by less than this are pruned, as the proof says."""
ROUNDING = 1e-12
_PATIENCE = 5
"""Factor on the actions to simulate as long as no plan is within the limits."""
_REST = 0.25
"""Fraction of the actions to simulate for the rest of the front, once the pick is proven."""


@dataclass(frozen=True)
class _Outcome:
    """What became of a candidate."""

    candidate: Lot | Family | Draft
    verdict: Verdict
    plan: Plan | None = None
    """The simulated plan, if it was simulated."""
    reason: str = ""
    """Why the candidate is infeasible."""


def search(
    markets: Market | Sequence[Market],
    limits: Limits,
    goal: Goal = "balanced",
    hour_usd: float | None = None,
    *,
    also: Sequence[Plan] = (),
    limit_s: float = math.inf,
) -> Search:
    """Find the best plan within the limits. PlanError says which limit no plan can meet.

    Each of several `markets` has its own store, for the same job. A plan is of one of them, and all are searched as
    one. Ties go to fewer members, then to less memory. `also` are other plans to consider. All that fit memory are
    simulated, so the pick is never worse than any of them. They are of the first market, and need to meet deadline and
    budget, but no other limit. After `limit_s`, what is not judged yet stays open, as soon as some plan is found.
    """
    begin_s = time.perf_counter()
    objective = objective_of(goal, hour_usd)
    every = [markets] if isinstance(markets, Market) else list(markets)
    first = every[0]
    extra = [draft(plan, first) for plan in also]
    offered = lots(every, limits, lambda each: promise(each, objective))
    until_s = begin_s + limit_s
    target = None if goal == "balanced" else objective
    outcomes = _explore(offered, extra, limits, objective, target, until_s)
    if not outcomes:
        raise PlanError(no_layout(first, limits, min(grain_sizes(first.profile))))
    feasible = _feasible(outcomes)
    if not feasible:
        raise PlanError(_why_infeasible(offered, extra, outcomes, limits))
    front = plans_on_front(feasible)
    pick = best(front, goal, objective)
    others = [plan for plan in feasible if _kind(plan) != _kind(pick)]
    runner_up = min(others, key=lambda plan: order_of(plan, objective), default=None)
    beyond = [outcome.plan for outcome in outcomes if outcome.plan is not None and outcome.reason]
    left_out = _left_out(every, feasible)
    return Search(
        goal=goal,
        hour_usd=hour_usd,
        pick=pick,
        runner_up=runner_up,
        front=tuple(front),
        candidates=tuple(_record(outcome, pick, front) for outcome in outcomes),
        left_out=left_out,
        num_simulated=sum(outcome.plan is not None for outcome in outcomes),
        proof=_proof(outcomes, pick, target, time.perf_counter() - begin_s),
        reasons=(
            *reasons(pick, runner_up, beyond, limits, objective),
            *(left_out_in_words(each.offers, each.reason) for each in left_out),
        ),
    )


def _left_out(markets: Sequence[Market], planned: Sequence[Plan]) -> tuple[LeftOut, ...]:
    """What the markets have left out, each reason once, but for offers that some plan of another market uses."""
    used = {offer.name for plan in planned for offer in plan.offers}
    names: dict[str, dict[str, None]] = {}
    for left_out in (each for market in markets for each in market.left_out):
        names.setdefault(left_out.reason, {}).update(dict.fromkeys(left_out.offers))
    every = [
        LeftOut(offers=tuple(each for each in offers if each not in used), reason=reason)
        for reason, offers in names.items()
    ]
    return tuple(each for each in every if each.offers)


def _explore(
    offered: Sequence[Lot],
    extra: Sequence[Draft],
    limits: Limits,
    objective: Objective,
    target: Objective | None = None,
    until_s: float = math.inf,
) -> list[_Outcome]:
    """Simulate the extra drafts, then take candidates in the order of their promise: prune, expand or simulate each.

    The exploration ends when no candidate is left, or after enough actions, or at `until_s` of the performance counter.
    With a target, the actions are fewer from when no candidate left can improve on the incumbent.
    """
    outcomes = [_lacking(draft) if draft.missing_bytes > 0 else _simulate(draft, limits) for draft in extra]
    points = [(plan.prediction.run_s, plan.prediction.run_usd) for plan in _feasible(outcomes)]
    expanded: list[Family] = []
    mixed = {lot for lot in offered if lot.num_kinds > 1}
    is_hurried = target is None and until_s < math.inf
    queue = Queue([objective, *ENDS] if is_hurried else [objective])
    queue.offer(offered)
    num_simulated = num_actions = num_candidates = 0
    max_actions: float = MAX_ACTIONS
    while (candidate := queue.take()) is not None:
        if isinstance(candidate, Lot):
            mixed.discard(candidate)
        bound_s, bound_usd = candidate.lower_bound
        slack = 1 + max((fraction for above, fraction in SLACKS if num_candidates > above), default=0.0)
        if target is not None and max_actions == MAX_ACTIONS and points:
            least = min(target(bound_s, bound_usd), *(target(*lot.lower_bound) for lot in mixed), math.inf)
            is_proven = min(itertools.starmap(target, points)) <= least
            max_actions = num_actions + _REST * MAX_ACTIONS if is_proven else max_actions
        patience = max_actions if points else _PATIENCE * MAX_ACTIONS
        if candidate.missing_bytes > 0:
            outcomes.append(_lacking(candidate))
        elif reason := broken_by_bounds(bound_s, bound_usd, limits):
            outcomes.append(_Outcome(candidate, "beyond a limit", reason=reason))
        elif any(run_s <= slack * bound_s and run_usd <= slack * bound_usd for run_s, run_usd in points):
            outcomes.append(_Outcome(candidate, "bounded out"))
        elif points and time.perf_counter() > until_s:
            outcomes.append(_Outcome(candidate, "open"))
        elif isinstance(candidate, Lot):
            made = candidate.candidates()
            num_candidates += len(made)
            queue.offer(made)
        elif isinstance(candidate, Family) and candidate.partition_bound_s is None:
            queue.offer([candidate.sharpened()])
        elif num_actions > patience and num_simulated >= MIN_SIMULATED:
            outcomes.append(_Outcome(candidate, "open"))
        elif isinstance(candidate, Family):
            expanded.append(candidate)
            queue.offer(candidate.drafts())
        else:
            outcome = _simulate(candidate, limits)
            outcomes.append(outcome)
            num_simulated += 1
            num_actions += candidate.num_actions
            points += [(plan.prediction.run_s, plan.prediction.run_usd) for plan in _feasible([outcome])]
    return outcomes + _other_partitions(outcomes, expanded, limits, until_s)


def _other_partitions(
    outcomes: Sequence[_Outcome], expanded: Sequence[Family], limits: Limits, until_s: float
) -> list[_Outcome]:
    """Simulate the closed form's next best partitions of the families on the front."""
    kinds = {(_kind(plan), plan.grain_size) for plan in plans_on_front(_feasible(outcomes))}
    seen = {outcome.candidate.plan for outcome in outcomes if isinstance(outcome.candidate, Draft)}
    return [
        _simulate(draft, limits)
        for family in expanded
        if (_kind(family.plan), family.plan.grain_size) in kinds
        for draft in family.drafts(MAX_PARTITIONS)
        if draft.plan not in seen and draft.missing_bytes <= 0 and time.perf_counter() <= until_s
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


def _lacking(candidate: Lot | Family | Draft) -> _Outcome:
    return _Outcome(candidate, "too large", reason=f"it lacks {format_bytes(candidate.missing_bytes)} of memory")


def _simulate(draft: Draft, limits: Limits) -> _Outcome:
    try:
        plan = evaluate(draft)
    except HopelessPlan as error:
        return _Outcome(draft, "hopeless", reason=str(error))
    reason = broken_limit(plan, limits)
    return _Outcome(draft, "beyond a limit" if reason else "dominated", plan, reason)


def _why_infeasible(
    offered: Sequence[Lot],
    extra: Sequence[Draft],
    outcomes: Sequence[_Outcome],
    limits: Limits,
) -> str:
    """Say which smallest change of the limits would make a plan feasible."""
    if all(outcome.verdict == "too large" for outcome in outcomes):
        made = [outcome.candidate for outcome in outcomes if not isinstance(outcome.candidate, Lot)]
        return too_large(closest_to_fitting(made))
    unlimited = structs.replace(limits, deadline_s=None, budget_usd=None)
    explored = _explore(offered, extra, unlimited, objective_of("balanced"))
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
