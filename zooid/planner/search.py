"""From what can be had and the limits to the plan: closed forms propose, bounds discard, the simulator decides.

Proposals come from exact optimisers of the papers' closed forms. Each has a lower bound of its simulated time, and so
of its cost. They are simulated in the order of these bounds; one to which another is both faster and cheaper than it
can be at best is discarded without. When all are simulated or discarded, the front is that of all proposals.
"""

import heapq
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.search_result import Candidate, Goal, Proof, Search, Verdict
from zooid.core.units import format_bytes, format_duration, format_usd
from zooid.planner.drafts import Draft, draft, evaluate
from zooid.planner.families import PARTITIONS_EACH, Family, Known, families, grain_sizes
from zooid.planner.infeasible import broken_limit, no_layout, too_large, what_binds
from zooid.planner.market import Market
from zooid.planner.mixed import unlike
from zooid.planner.objectives import Objective, best, objective_of, order_of, plans_on_front
from zooid.planner.reasons import left_out_in_words, reasons
from zooid.predictor import Proposal
from zooid.predictor.equations.array_checks import Array

MOST_ACTIONS = 60_000
"""What is simulated of all candidates together: about two seconds. The rest stays open, and the proof says so."""
SLACK, MANY = 0.01, 300
"""Of more families than this, one that can be better by less than this share, in time or in money, is not looked into;
the proof says so."""
LEAST_SIMULATED = 12
"""So many are simulated, however large they are."""
GRAINS_OF_UNLIKE = 2
"""For so many sizes of grains, members that differ are looked for."""
ROUNDING = 1e-12
_PATIENCE = 5
"""How many times as much is simulated where nothing within the limits was found so far."""
_REST = 0.25
"""What is simulated of the rest of the front when the pick is proven, as a share."""


Item: TypeAlias = Family | Draft


@dataclass(frozen=True)
class _Tried:
    item: Item
    verdict: Verdict
    plan: Plan | None = None
    reason: str = ""


def search(
    market: Market,
    limits: Limits,
    goal: Goal = "balanced",
    hour_usd: float | None = None,
    *,
    also: Sequence[Proposal] = (),
) -> Search:
    """The best plan within the limits, what it was chosen from, and why. PlanError says which limit nothing can meet.

    Ties go to fewer members, then to less memory. `also` are proposals of others: those whose members fit are all
    simulated, so that the pick is never worse than one of them; of the limits, they are held to deadline and budget.
    """
    begin_s = time.perf_counter()
    objective = objective_of(goal, hour_usd)
    given = [draft(proposal, market) for proposal in also]
    items: list[Item] = list(families(market, limits))
    if len(market.offers) > 1:
        ordered = sorted(items, key=lambda item: _promise(item, objective))
        grains = list(dict.fromkeys(item.grain_size for item in ordered)) or grain_sizes(market.profile)
        items += [draft(proposal, market) for proposal in unlike(market, limits, grains[:GRAINS_OF_UNLIKE])]
    if not items and not given:
        raise PlanError(no_layout(market, limits, min(grain_sizes(market.profile))))
    aim = None if goal == "balanced" else objective
    tried = _try(items, limits, objective, market, given, aim)
    allowed = [each.plan for each in tried if each.plan is not None and not each.reason]
    if not allowed:
        raise PlanError(_refusal(items, tried, limits, market, given))
    front = plans_on_front(allowed)
    pick = best(front, goal, objective)
    runner_up = _runner_up(allowed, pick, objective)
    tried = [replace(each, verdict=_verdict(each, pick, front)) for each in tried]
    proof = _proof(tried, pick, aim, time.perf_counter() - begin_s)
    beyond = [each.plan for each in tried if each.plan is not None and each.reason]
    return Search(
        goal=goal,
        hour_usd=hour_usd,
        pick=pick,
        runner_up=runner_up,
        front=tuple(front),
        candidates=tuple(map(_candidate, tried)),
        left_out=market.left_out,
        num_simulated=sum(each.plan is not None for each in tried),
        proof=proof,
        reasons=(
            *reasons(pick, runner_up, beyond, limits, objective),
            *(left_out_in_words(each.offers, each.reason) for each in market.left_out),
        ),
    )


def _try(
    items: Sequence[Item],
    limits: Limits,
    objective: Objective,
    market: Market,
    given: Sequence[Draft],
    aim: Objective | None = None,
) -> list[_Tried]:
    """Simulate what is given, then take what may be best first: look into a family, simulate a draft, or discard
    either as bounds tell, until nothing is left or it is enough. With an aim, that is soon after nothing that is left
    can come nearer to it."""
    tried = [
        _too_large(made, made.missing_bytes) if made.missing_bytes > 0 else _simulated(made, limits, market)
        for made in given
    ]
    found = [
        (plan.prediction.run_s, plan.prediction.run_usd) for each in tried if (plan := each.plan) and not each.reason
    ]
    known = Known()
    count = itertools.count()
    heap = [(_promise(item, objective), next(count), item) for item in items]
    heapq.heapify(heap)
    num_simulated = num_actions = 0
    enough: float = MOST_ACTIONS
    slack = 1 + SLACK * (len(items) > MANY)
    while heap:
        _, _, item = heapq.heappop(heap)
        least_s, least_usd = item.least
        if aim is not None and enough == MOST_ACTIONS and found:
            is_proven = min(itertools.starmap(aim, found)) <= aim(least_s, least_usd)
            enough = num_actions + _REST * MOST_ACTIONS if is_proven else enough
        patience = enough if found else _PATIENCE * MOST_ACTIONS
        missing = item.missing_bytes if isinstance(item, Draft) else item.missing_bytes_at_least(known)
        if missing > 0:
            tried.append(_too_large(item, missing))
        elif reason := _certainly_broken(least_s, least_usd, limits):
            tried.append(_Tried(item, "beyond a limit", reason=reason))
        elif any(run_s <= slack * least_s and run_usd <= slack * least_usd for run_s, run_usd in found):
            tried.append(_Tried(item, "bounded out"))
        elif isinstance(item, Family) and item.at_least_s is None:
            sharper = known.sharper(item)
            heapq.heappush(heap, (_promise(sharper, objective), next(count), sharper))
        elif num_actions > patience and num_simulated >= LEAST_SIMULATED:
            tried.append(_Tried(item, "open"))
        elif isinstance(item, Family):
            for made in item.drafts(known):
                heapq.heappush(heap, (_promise(made, objective), next(count), made))
        else:
            tried.append(_simulated(item, limits, market))
            num_simulated += 1
            num_actions += item.num_actions
            if (plan := tried[-1].plan) and not tried[-1].reason:
                found.append((plan.prediction.run_s, plan.prediction.run_usd))
    return tried + _other_cuts(tried, [item for item in items if isinstance(item, Family)], known, limits, market)


def _other_cuts(
    tried: Sequence[_Tried], families: Sequence[Family], known: Known, limits: Limits, market: Market
) -> list[_Tried]:
    """Of what turned out well, the closed form's next best cuts."""
    within = {id(each.plan): each.item for each in tried if each.plan is not None and not each.reason}
    front = plans_on_front([each.plan for each in tried if each.plan is not None and not each.reason])
    good = {(item.offers, item.layout, item.transport, item.grain_size) for plan in front if (item := within[id(plan)])}
    seen = {each.item.proposal for each in tried if isinstance(each.item, Draft)}
    again = [
        made
        for family in families
        if (family.offers, family.layout, family.transport, family.grain_size) in good
        for made in family.drafts(known, PARTITIONS_EACH)
        if made.proposal not in seen and made.missing_bytes <= 0
    ]
    return [_simulated(made, limits, market) for made in again]


def _too_large(item: Item, missing_bytes: int) -> _Tried:
    return _Tried(item, "too large", reason=f"it lacks {format_bytes(missing_bytes)} of memory")


def _simulated(made: Draft, limits: Limits, market: Market) -> _Tried:
    plan = evaluate(made, market)
    reason = broken_limit(plan, limits)
    return _Tried(made, "beyond a limit" if reason else "dominated", plan, reason)


def _promise(item: Item, objective: Objective) -> tuple[float, int, int, int]:
    """For sorting: what may be best first; of equals what needs less, and small grains, which can be shared in more
    ways when members come and go."""
    memory_bytes = sum(item.memory_bytes) if isinstance(item, Draft) else 0
    return objective(*item.least), item.num_members, memory_bytes, item.grain_size


def _certainly_broken(least_s: float, least_usd: float, limits: Limits) -> str:
    if limits.deadline_s is not None and least_s > limits.deadline_s:
        return f"the deadline: it takes at least {format_duration(least_s)}"
    if limits.budget_usd is not None and least_usd > limits.budget_usd:
        return f"the budget: it costs at least {format_usd(least_usd)}"
    return ""


def _refusal(
    items: Sequence[Item], tried: Sequence[_Tried], limits: Limits, market: Market, given: Sequence[Draft]
) -> str:
    """Nothing is within the limits: what the smallest change is that helps."""
    if all(each.verdict == "too large" for each in tried):
        return too_large(_closest([each.item for each in tried]), market)
    without = structs.replace(limits, deadline_s=None, budget_usd=None)
    every = _try(items, without, objective_of("balanced"), market, given)
    return what_binds([each.plan for each in every if each.plan is not None], limits)


def _closest(items: Sequence[Item]) -> Draft:
    """Of what is too large, what lacks the least."""
    closest = min((item for item in items if isinstance(item, Draft)), key=_missing, default=None)
    known = Known()
    left = [(item.missing_bytes_at_least(known), item) for item in items if isinstance(item, Family)]
    for missing, family in sorted(left, key=lambda pair: pair[0]):
        if closest is not None and closest.missing_bytes <= missing:
            break
        own = min(family.drafts(known), key=_missing)
        closest = own if closest is None else min(closest, own, key=_missing)
    assert closest is not None, "there is something"
    return closest


def _missing(made: Draft) -> int:
    return made.missing_bytes


def _verdict(each: _Tried, pick: Plan, front: Sequence[Plan]) -> Verdict:
    if each.plan is None or each.reason:
        return each.verdict
    if each.plan is pick:
        return "pick"
    return "front" if any(each.plan is plan for plan in front) else "dominated"


def _candidate(each: _Tried) -> Candidate:
    item, prediction = each.item, each.plan.prediction if each.plan is not None else None
    least_s, least_usd = item.least
    schedule, ahead = item.order
    return Candidate(
        layout=item.layout,
        offers=item.offers,
        num_members=item.num_members,
        grain_size=item.grain_size,
        schedule=schedule,
        ahead=ahead,
        transport=item.transport,
        run_s=least_s if prediction is None else prediction.run_s,
        run_usd=least_usd if prediction is None else prediction.run_usd,
        is_simulated=prediction is not None,
        verdict=each.verdict,
        reason=each.reason,
    )


def _runner_up(allowed: Sequence[Plan], pick: Plan, objective: Objective) -> Plan | None:
    """Another cut or grain of the same is no other plan."""

    def kind(plan: Plan) -> tuple[object, ...]:
        return plan.layout, plan.transport, [offer.name for offer in plan.member_offers]

    others = [plan for plan in allowed if kind(plan) != kind(pick)]
    return min(others, key=lambda plan: order_of(plan, objective), default=None)


def _proof(tried: Sequence[_Tried], pick: Plan, objective: Objective | None, wall_s: float) -> Proof:
    """What was discarded, or is open, could be as good as its bound: against the pick by an objective, or against
    whatever of the front it is nearest to, in time and money at once, where there is none."""
    left = [each.item.least for each in tried if each.verdict in ("open", "bounded out")]
    if objective is not None:
        found = objective(pick.prediction.run_s, pick.prediction.run_usd)
        gap = max((1 - objective(*least) / found for least in left), default=0.0) if found > 0 else 0.0
    else:
        plans = [each.plan.prediction for each in tried if each.plan is not None and not each.reason]
        points = np.array([(plan.run_s, plan.run_usd) for plan in plans])
        gap = max((_beyond(points, least) for least in left), default=0.0)
    return Proof(status="bounded" if gap > ROUNDING else "optimal", gap=gap if gap > ROUNDING else 0.0, wall_s=wall_s)


def _beyond(points: Array, least: tuple[float, float]) -> float:
    """By what share everything is worse than this, at best."""
    worse = np.ones(len(points))
    for found, own in zip(points.T, least, strict=True):
        worse = np.maximum(worse, found / own if own > 0 else np.where(found > 0, np.inf, 1.0))
    return 1 - 1 / float(worse.min())
