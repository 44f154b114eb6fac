"""Where a run is heading: when it will end and what it will have cost, and whether its limits hold."""

from dataclasses import dataclass

from zooid.core.runs.allowance import Allowance
from zooid.core.units import format_duration, format_usd
from zooid.schedule.step_window import StepWindow

MIN_INTERVALS = 5
"""Number of steps between which the pace is known well enough to judge the rest of a run."""


@dataclass(frozen=True)
class Outlook:
    """The end of a run at its present pace."""

    end_at_s: float
    """Expected Unix time of the end."""
    usd: float
    """Expected cost at the end."""
    soonest_end_at_s: float
    """The end at the 95 % bound of the pace in the run's favour."""
    least_usd: float
    """The cost at that end."""


def outlook(window: StepWindow, num_steps_left: int, allowance: Allowance, now_s: float) -> Outlook | None:
    """Return where a run is heading; None while its pace is not known."""
    mean_s, fastest_s = window.mean_s, window.fastest_mean_s
    if mean_s is None or fastest_s is None or window.num_intervals < MIN_INTERVALS:
        return None
    end_at_s, soonest_at_s = (now_s + num_steps_left * step_s for step_s in (mean_s, fastest_s))
    return Outlook(end_at_s, allowance.usd_at(end_at_s), soonest_at_s, allowance.usd_at(soonest_at_s))


def danger(ahead: Outlook, allowance: Allowance) -> tuple[str, str]:
    """Return which limit will break even at the most favourable pace, and which limits would hold; empty texts if none.

    The favourable bound is used because a transient disturbance is no reason to change anything (Srifty §4.5).
    """
    reasons, wanted = [], []
    if allowance.deadline_at_s is not None and ahead.soonest_end_at_s > allowance.deadline_at_s:
        reasons.append(f"end {format_duration(ahead.end_at_s - allowance.deadline_at_s)} after its deadline")
        wanted.append(f"a deadline that is {format_duration(ahead.end_at_s - allowance.deadline_at_s)} later")
    if allowance.budget_usd is not None and ahead.least_usd > allowance.budget_usd:
        reasons.append(f"cost {format_usd(ahead.usd)}, and its budget is {format_usd(allowance.budget_usd)}")
        wanted.append(f"a budget of {format_usd(ahead.usd)}")
    if not reasons:
        return "", ""
    return f"at its present pace the run will {' and '.join(reasons)}", f"{' and '.join(wanted)} would hold"
