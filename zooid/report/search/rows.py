"""What tables and pages say about a search for a plan, in the same words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.plans.plan import Plan, ScheduleName
from zooid.core.plans.search_result import Search, Verdict
from zooid.core.units import format_duration, format_usd
from zooid.report.phrases import ESTIMATE, or_nothing, percent

PICK, RUNNER_UP = "pick", "runner-up"

VERDICTS: dict[Verdict, str] = {
    "pick": "the pick",
    "front": "on the Pareto front: no other is both faster and cheaper",
    "dominated": "dominated: another is faster and cheaper",
    "beyond a limit": "beyond a limit",
    "too large": "infeasible",
    "hopeless": "infeasible: members are lost too often",
    "bounded out": "pruned: another is faster and cheaper than its lower bound",
    "open": "left open: the search ended before it",
}


@dataclass(frozen=True)
class PlanRow:
    """A plan to choose from, in words."""

    mark: str
    """`pick` or `runner-up`; empty for other plans."""
    run: str
    run_p95: str
    usd: str
    usd_p95: str
    layout: str
    offers: tuple[str, ...]
    """The offers of its members, as `counted` says them."""
    grain_size: str
    schedule: str
    transport: str
    members: str
    is_on_front: bool


def plan_rows(search: Search) -> list[PlanRow]:
    """The Pareto front, fastest first, then the pick and the runner-up where they are not on it."""
    rows = [_row(plan, search, is_on_front=True) for plan in search.front]
    named = [plan for plan in (search.pick, search.runner_up) if plan is not None]
    return rows + [_row(plan, search, is_on_front=False) for plan in named if plan not in search.front]


def _row(plan: Plan, search: Search, *, is_on_front: bool) -> PlanRow:
    prediction = plan.prediction
    return PlanRow(
        mark=PICK if plan == search.pick else RUNNER_UP if plan == search.runner_up else "",
        run=format_duration(prediction.run_s),
        run_p95=or_nothing(prediction.run_p95_s, format_duration),
        usd=format_usd(prediction.run_usd),
        usd_p95=or_nothing(prediction.run_p95_usd, format_usd),
        layout=plan.layout,
        offers=counted([offer.name for offer in plan.member_offers]),
        grain_size=str(plan.grain_size),
        schedule=schedule_in_words(plan.schedule, plan.ahead),
        transport=plan.transport,
        members=str(plan.num_members),
        is_on_front=is_on_front,
    )


def counted(names: Sequence[str]) -> tuple[str, ...]:
    """Merge equal names of the members' offers, and count them where offers differ.

    >>> counted(["small", "small"]), counted(["small", "large", "small"])
    (('small',), ('2 small', '1 large'))
    """
    counts = Counter(names)
    return tuple(name if len(counts) == 1 else f"{number} {name}" for name, number in counts.items())


def schedule_in_words(schedule: ScheduleName, ahead: int) -> str:
    """
    >>> schedule_in_words("1f1b", 2)
    '1f1b, 2 ahead'
    """
    return f"{schedule}, {ahead} ahead" if ahead else schedule


def goal_in_words(search: Search) -> str:
    return search.goal if search.hour_usd is None else f"{search.goal}, an hour is worth {format_usd(search.hour_usd)}"


def effort_in_words(search: Search) -> str:
    """Number of candidates, how many were simulated, and the time of the search."""
    noun = "candidate" if len(search.candidates) == 1 else "candidates"
    took = format_duration(search.proof.wall_s)
    return f"{len(search.candidates):,} {noun}, {search.num_simulated:,} simulated, in {took}"


def proof_in_words(search: Search) -> str:
    """State what is proven, and no more."""
    if search.proof.status == "optimal":
        return "proven optimal among the candidates, for the simulator"
    num_open = sum(candidate.verdict == "open" for candidate in search.candidates)
    left = f"; {num_open:,} {'was' if num_open == 1 else 'were'} left open" if num_open else ""
    return f"proven within {percent(search.proof.gap)} of the best among the candidates, for the simulator{left}"


def estimate_mark(search: Search) -> str:
    """`ESTIMATE` and its source where a plan to choose from has estimated times; empty elsewhere."""
    plans = [plan for plan in (*search.front, search.pick, search.runner_up) if plan is not None]
    sources = dict.fromkeys(plan.prediction.estimated_from for plan in plans if plan.prediction.estimated_from)
    return f"{ESTIMATE}, from times measured on {', '.join(sources)}" if sources else ""
