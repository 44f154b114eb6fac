"""What tables and pages say about a search for a plan, in the same words and numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.plans.plan import Plan, ScheduleName
from zooid.core.plans.search_result import Search, Verdict
from zooid.core.units import format_duration, format_usd
from zooid.report.prediction.rows import small_percent
from zooid.report.profile.rows import ESTIMATE, NOTHING

PICK, RUNNER_UP = "pick", "runner-up"

VERDICTS: dict[Verdict, str] = {
    "pick": "the pick",
    "front": "on the front: no other is both faster and cheaper",
    "dominated": "dominated: another is faster and cheaper",
    "beyond a limit": "beyond a limit",
    "too large": "too large",
    "bounded out": "bounded out: another is faster and cheaper than it can be at best",
    "open": "left open: it was not looked at any more",
}


@dataclass(frozen=True)
class PlanRow:
    """A plan that one may choose, in words."""

    mark: str
    """`pick` or `runner-up`; empty for the others."""
    run: str
    run_p95: str
    usd: str
    usd_p95: str
    layout: str
    offers: tuple[str, ...]
    """As `counted` gives them."""
    grain_size: str
    schedule: str
    transport: str
    members: str
    is_on_front: bool


def plan_rows(found: Search) -> list[PlanRow]:
    """The front, the fastest first; then the runner-up, where another plan beats it in both time and cost."""
    rows = [_row(plan, found, is_on_front=True) for plan in found.front]
    named = [found.pick] if found.runner_up is None else [found.pick, found.runner_up]
    return rows + [_row(plan, found, is_on_front=False) for plan in named if plan not in found.front]


def _row(plan: Plan, found: Search, *, is_on_front: bool) -> PlanRow:
    prediction = plan.prediction
    return PlanRow(
        mark=PICK if plan == found.pick else RUNNER_UP if plan == found.runner_up else "",
        run=format_duration(prediction.run_s),
        run_p95=NOTHING if prediction.run_p95_s is None else format_duration(prediction.run_p95_s),
        usd=format_usd(prediction.run_usd),
        usd_p95=NOTHING if prediction.run_p95_usd is None else format_usd(prediction.run_p95_usd),
        layout=plan.layout,
        offers=counted([offer.name for offer in plan.member_offers]),
        grain_size=str(plan.grain_size),
        schedule=schedule_in_words(plan.schedule, plan.ahead),
        transport=plan.transport,
        members=str(plan.num_members),
        is_on_front=is_on_front,
    )


def counted(names: Sequence[str]) -> tuple[str, ...]:
    """Of members, by the names of what each stands on; how many stand on what, where they differ.

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


def goal_in_words(found: Search) -> str:
    return found.goal if found.hour_usd is None else f"{found.goal}, an hour is worth {format_usd(found.hour_usd)}"


def effort_in_words(found: Search) -> str:
    """How much was looked at."""
    noun = "candidate" if len(found.candidates) == 1 else "candidates"
    return (
        f"{len(found.candidates):,} {noun}, {found.num_simulated:,} simulated, in {format_duration(found.proof.wall_s)}"
    )


def proof_in_words(found: Search) -> str:
    """What is certain, and no more than that."""
    if found.proof.status == "optimal":
        return "proven optimal among the candidates, for the simulator"
    num_open = sum(each.verdict == "open" for each in found.candidates)
    left = f"; {num_open:,} {'was' if num_open == 1 else 'were'} left open" if num_open else ""
    return f"proven within {small_percent(found.proof.gap)} of the best among the candidates, for the simulator{left}"


def estimate_mark(found: Search) -> str:
    """`ESTIMATE` and from what, where a plan that one may choose has times that were not measured; empty elsewhere."""
    plans = [*found.front, found.pick, *([] if found.runner_up is None else [found.runner_up])]
    sources = dict.fromkeys(plan.prediction.estimated_from for plan in plans if plan.prediction.estimated_from)
    return f"{ESTIMATE}, from times measured on {', '.join(sources)}" if sources else ""
