"""What to change where no choice between sites meets the limits: which of them binds, and the least that helps."""

import math
from typing import Literal

import msgspec
import numpy as np

from zooid.core.records import Record
from zooid.core.units import format_duration, format_usd
from zooid.planner.sites.boxes import search_boxes
from zooid.planner.sites.model import Model
from zooid.planner.sites.problem import SiteChoice, SiteProblem
from zooid.planner.sites.wanted import Best

_MOST_MORE = 64
"""Members that are tried beyond what can be had."""


class Loosening(Record, frozen=True, kw_only=True):
    """One change, and that it is enough."""

    limit: Literal["deadline_s", "budget_usd", "most", "batch_size"]
    value: float
    """What the limit would have to be, rounded up to three digits."""
    offer: str | None = None
    """Whose `most`; of `most_members`, too, where that is in the way."""
    sentence: str


def loosenings(problem: SiteProblem, most_boxes: int) -> tuple[Loosening, ...]:
    """What would help, each alone but where the first sentence says otherwise; none where the limits can be met."""
    if _best(problem, problem.goal, most_boxes) is not None:
        return ()
    no_deadline = msgspec.structs.replace(problem, deadline_s=None)
    no_budget = msgspec.structs.replace(problem, budget_usd=None)
    changes = []
    in_budget = _best(no_deadline, "fastest", most_boxes)
    if in_budget is not None:
        changes.append(_deadline(problem, in_budget))
    in_time = _best(no_budget, "cheapest", most_boxes)
    if in_time is not None:
        changes.append(_budget(problem, in_time))
    if not changes:  # each limit alone is too tight: the cheapest of all, and then as fast as its budget allows
        cheapest = _best(msgspec.structs.replace(no_budget, deadline_s=None), "cheapest", most_boxes)
        assert cheapest is not None, "one member can always train alone"
        changes.append(_budget(problem, cheapest, "Both limits are too tight: "))
        widened = msgspec.structs.replace(no_deadline, budget_usd=changes[0].value)
        fastest = _best(widened, "fastest", most_boxes)
        assert fastest is not None, "the cheapest is within this budget"
        changes.append(_deadline(problem, fastest))
        return tuple(changes)
    if in_budget is not None and problem.deadline_s is not None:
        changes += _more_members(problem, in_budget) + _larger_batch(problem, in_budget)
    return tuple(changes)


def _best(problem: SiteProblem, goal: str, most_boxes: int) -> SiteChoice | None:
    asked = msgspec.structs.replace(problem, goal=goal)
    model, found = Model(asked), Best(asked, 1)
    search_boxes(model, found, most_boxes)
    return next((model.choice(np.array(counts, np.int64), method) for counts, method in found.choices), None)


def _deadline(problem: SiteProblem, fastest: SiteChoice) -> Loosening:
    assert problem.deadline_s is not None, "without a deadline nothing is too slow"
    value = _enough(fastest.time_s)
    within = f" for at most {format_usd(problem.budget_usd)}" if problem.budget_usd is not None else ""
    sentence = (
        f"No choice ends within {format_duration(problem.deadline_s)}{within}: the fastest, {fastest}, takes "
        f"{format_duration(fastest.time_s)}; allow {value:g} s."
    )
    return Loosening(limit="deadline_s", value=value, sentence=sentence)


def _budget(problem: SiteProblem, cheapest: SiteChoice, before: str = "") -> Loosening:
    assert problem.budget_usd is not None, "without a budget nothing is too dear"
    value = _enough(cheapest.usd)
    within = f" within {format_duration(problem.deadline_s)}" if problem.deadline_s is not None and not before else ""
    sentence = (
        f"{before}{'no' if before else 'No'} choice costs at most {format_usd(problem.budget_usd)}{within}: the "
        f"cheapest, {cheapest}, costs {format_usd(cheapest.usd)}; allow ${value:g}."
    )
    return Loosening(limit="budget_usd", value=value, sentence=sentence)


def _more_members(problem: SiteProblem, fastest: SiteChoice) -> list[Loosening]:
    """The offer of which the fewest more members make it, added to the fastest choice there is."""
    model = Model(problem)
    now = model.counts(fastest.num_by_offer)
    limit_s, limit_usd = problem.deadline_s or math.inf, problem.budget_usd or math.inf
    options = []
    for at, offer in enumerate(problem.offers):
        more = np.arange(1, _MOST_MORE + 1)
        counts = np.tile(now, (_MOST_MORE, 1))
        counts[:, at] += more
        for method in model.methods:
            totals = model.totals(counts, method)
            enough = np.flatnonzero((totals.time_s <= limit_s) & (totals.usd <= limit_usd))
            if len(enough):
                options.append((int(more[enough[0]]), offer.name, int(now[at] + more[enough[0]])))
    if not options:
        return []
    more_of, name, count = min(options)
    sentence = f"{more_of} more of {name}, {count} in all, would make it."
    return [Loosening(limit="most", value=count, offer=name, sentence=sentence)]


def _larger_batch(problem: SiteProblem, fastest: SiteChoice) -> list[Loosening]:
    """The smallest batch with which the fastest choice makes it: fewer rounds average less often."""
    assert problem.deadline_s is not None, "asked only where there is one"
    speed = problem.batch_size / fastest.compute_s
    fleet_usd_per_s = fastest.compute_usd / fastest.time_s
    egress_usd = fastest.egress_usd / fastest.num_rounds
    left_s = problem.deadline_s - problem.num_samples / speed
    most_rounds = min(int(left_s / fastest.averaging_s), fastest.num_rounds) if fastest.averaging_s > 0 else 0
    for rounds in range(most_rounds, max(most_rounds - 1000, 0), -1):  # whole batches overshoot a little
        batch = math.ceil(problem.num_samples / rounds)
        time_s = math.ceil(problem.num_samples / batch) * (batch / speed + fastest.averaging_s)
        usd = time_s * fleet_usd_per_s + rounds * egress_usd
        if time_s <= problem.deadline_s and usd <= (problem.budget_usd or math.inf):
            sentence = f"A batch of {batch} instead of {problem.batch_size} would make it: {rounds} rounds."
            return [Loosening(limit="batch_size", value=batch, sentence=sentence)]
    return []


def _enough(value: float) -> float:
    """Three digits, never below."""
    if value == 0:
        return 0.0
    digits = 2 - math.floor(math.log10(value))
    rounded = round(math.ceil(value * 10.0**digits) / 10.0**digits, max(digits, 0))
    return rounded if rounded >= value else rounded + 10.0**-digits
