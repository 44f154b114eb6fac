"""Every baseline with its best choice: the fastest and the cheapest plan of all that its paper lets it choose from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.baselines.bayes import NUM_EVALUATIONS, bayes
from benchmarks.baselines.fleets import ChosenFleet, by_analytical_model, by_cheapest, by_fastest
from benchmarks.baselines.hybrid_ps import ServedRun, hybrid_ps
from benchmarks.baselines.hydrozoa import cut_by_grid, hydrozoa
from benchmarks.baselines.hydrozoa_grid import NUM_BOUNDS
from benchmarks.baselines.lambda_ml import lambda_ml, lambda_ml_accumulating
from benchmarks.baselines.simulated import closed_form_step_s, simulated
from benchmarks.baselines.tpdmp import tpdmp
from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Goal
from zooid.planner import Market, in_words
from zooid.planner.objectives import best, objective_of

GOALS: tuple[Goal, ...] = ("fastest", "cheapest")
ON_FUNCTIONS = ("LambdaML", "LambdaML-GA", "HybridPS", "Hydrozoa", "TPDMP", "Bayes")
ON_VMS = ("APM", "CGF", "FGF")


@dataclass(frozen=True)
class Effort:
    """What the two that search for long may take."""

    num_bounds: int = NUM_BOUNDS
    num_evaluations: int = NUM_EVALUATIONS


@dataclass(frozen=True)
class Rival:
    """What one baseline takes for one goal."""

    name: str
    goal: Goal
    words: str
    closed_form_s: float
    """Of a step."""
    run_s: float
    """Simulated; where there is no plan that can be simulated, by the closed form."""
    run_usd: float
    plan: Plan | None = None


def on_functions(market: Market, max_members: int, effort: Effort) -> Iterator[Rival]:
    """All of ON_FUNCTIONS for all of GOALS. One for which nothing fits is left out."""
    for name, propose in (("LambdaML", lambda_ml), ("LambdaML-GA", lambda_ml_accumulating)):
        yield from _best(name, simulated(propose(market, max_members), market), market)
    yield from _served(market, max_members)
    yield from _best(
        "Hydrozoa",
        simulated(hydrozoa(market, max_members), market),
        market,
        lambda proposal: cut_by_grid(proposal, market, effort.num_bounds),
    )
    yield from _best("TPDMP", simulated(tpdmp(market, max_members), market), market)
    for goal in GOALS:
        plans = bayes(market, max_members, objective_of(goal), num_evaluations=effort.num_evaluations)
        yield from _best("Bayes", plans, market, goals=(goal,))


def on_vms(market: Market, max_members: int, effort: Effort) -> Iterator[Rival]:
    """All of ON_VMS: the analytical model for all of GOALS, the greedy ones for what they are greedy for."""
    for goal in GOALS:
        yield from _best_fleet("APM", goal, by_analytical_model(market, max_members, goal), market)
    yield from _best_fleet("CGF", "cheapest", by_cheapest(market, max_members), market)
    yield from _best_fleet("FGF", "fastest", by_fastest(market, max_members), market)


def described(plan: Plan) -> str:
    """Members, and what a step of them looks like."""
    order = "" if len(plan.stages) == 1 else f", {plan.schedule}{f'+{plan.ahead}' if plan.ahead else ''}"
    return f"{in_words(plan)}, grains of {plan.grain_size}{order}"


def _best(
    name: str,
    plans: Sequence[Plan],
    market: Market,
    mended: Callable[[Plan], Plan] | None = None,
    goals: Sequence[Goal] = GOALS,
) -> Iterator[Rival]:
    for goal in goals if plans else ():
        plan = best(plans, goal, objective_of(goal))
        if mended is not None:
            [plan] = simulated([mended(plan)], market)
        yield _rival(name, goal, plan, closed_form_step_s(plan, market))


def _best_fleet(name: str, goal: Goal, fleets: Iterable[ChosenFleet], market: Market) -> Iterator[Rival]:
    by_plan = [(plan, each) for each in fleets for plan in simulated([each.proposal], market)]
    if by_plan:
        best_plan = best([plan for plan, _ in by_plan], goal, objective_of(goal))
        chosen = next(each for plan, each in by_plan if plan is best_plan)
        yield _rival(name, goal, best_plan, chosen.closed_form_s)


def _rival(name: str, goal: Goal, plan: Plan, closed_form_s: float) -> Rival:
    return Rival(
        name=name,
        goal=goal,
        words=described(plan),
        closed_form_s=closed_form_s,
        run_s=plan.prediction.run_s,
        run_usd=plan.prediction.run_usd,
        plan=plan,
    )


def _served(market: Market, max_members: int) -> Iterator[Rival]:
    runs = list(hybrid_ps(market, max_members))
    for goal in GOALS if runs else ():
        run = min(runs, key=_by_time if goal == "fastest" else _by_cost)
        yield Rival("HybridPS", goal, run.words, run.step_s, run.run_s, run.run_usd)


def _by_time(run: ServedRun) -> tuple[float, float]:
    return run.run_s, run.run_usd


def _by_cost(run: ServedRun) -> tuple[float, float]:
    return run.run_usd, run.run_s
