"""Why this plan and not another, in sentences that a person believes."""

from collections import Counter
from collections.abc import Sequence

from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.search_result import Candidate, Search
from zooid.core.runs.timeline import StepParts
from zooid.core.units import format_duration, format_usd
from zooid.planner.infeasible import broken_limit
from zooid.planner.market import is_named
from zooid.planner.objectives import Objective, objective_of, order_of

_ALIKE = 0.005
"""Below this difference two plans take, or cost, the same."""
_MOST_NAMES = 3
"""Most offers that a sentence about left-out offers names."""
_PARTS = {
    "compute_s": "computing",
    "transfer_s": "transfers that nothing hides",
    "reduce_s": "reducing gradients",
    "bubble_s": "waiting for other members",
}


def reasons(
    pick: Plan,
    runner_up: Plan | None,
    beyond: Sequence[Plan],
    limits: Limits,
    objective: Objective,
) -> tuple[str, ...]:
    """What the pick is, where its time goes, why the next best lost, and what binds. `beyond` are plans that would
    break a limit."""
    sentences = [f"{in_words(pick)} takes {_about(pick)}."]
    if pick.why_whole:
        sentences.append(f"The model is trained as one stage, without a pipeline: {pick.why_whole}.")
    if pick.prediction.parts is not None and pick.prediction.step_s > 0:
        sentences.append(f"A step of it goes into {_parts_in_words(pick.prediction.parts)}.")
    if runner_up is not None:
        compared = f"{_compared(runner_up, pick)}{_because(runner_up, pick)}"
        sentences.append(f"The runner-up, {in_words(runner_up)}, is {compared}.")
    sentences.append(_binding(pick, beyond, limits, objective))
    if pick.num_members == limits.max_members and limits.num_replicas is None:
        sentences.append(f"It uses all of the {limits.max_members} members that are allowed; more may be better.")
    return tuple(sentences)


def left_out_in_words(offers: Sequence[str], reason: str) -> str:
    """
    >>> left_out_in_words(["a", "b", "c", "d", "e"], "nobody knows its price")
    'a, b, c and 2 more are left out: nobody knows its price.'
    """
    shown, num_more = ", ".join(offers[:_MOST_NAMES]), len(offers) - _MOST_NAMES
    names = f"{shown} and {num_more} more" if num_more > 0 else shown
    return f"{names} {'is' if len(offers) == 1 else 'are'} left out: {reason}."


def why_not(found: Search, name: str) -> str:
    """Why nothing on this offer, or on those whose names begin so, was picked."""
    absent = [
        left_out_in_words(named, each.reason)
        for each in found.left_out
        if (named := [offer for offer in each.offers if is_named(offer, name)])
    ]
    own = [each for each in found.candidates if any(is_named(offer, name) for offer in each.offers)]
    if not own and not absent:
        offers = dict.fromkeys(offer for each in found.candidates for offer in each.offers)
        raise InputError(f"nothing was planned on {name}; the candidates stand on {', '.join(offers)}")
    return " ".join((*([_why_not_planned(found, name, own)] if own else []), *absent))


def _why_not_planned(found: Search, name: str, own: Sequence[Candidate]) -> str:
    """The same of an offer that candidates stand on."""
    if any(is_named(offer.name, name) for offer in found.pick.member_offers):
        return f"{name} is in the pick: {in_words(found.pick)}."
    objective = objective_of(found.goal, found.hour_usd)
    able = [each for each in own if each.verdict not in ("too large", "beyond a limit")]
    if not able:
        closest = min(own, key=lambda each: objective(each.run_s, each.run_usd))
        what = "fits" if closest.verdict == "too large" else "is within the limits"
        return f"No plan on {name} {what}: of {_candidate_in_words(closest)}, {closest.reason}."
    closest = min(able, key=lambda each: objective(each.run_s, each.run_usd))
    prediction = found.pick.prediction
    at_best = "" if closest.is_simulated else "at best "
    slower = _change(closest.run_s, prediction.run_s, "slower", "faster")
    dearer = _change(closest.run_usd, prediction.run_usd, "dearer", "cheaper")
    takes = f"takes {at_best}{format_duration(closest.run_s)} and costs {at_best}{format_usd(closest.run_usd)}"
    return (
        f"The best on {name}, {_candidate_in_words(closest)}, {takes}: {slower} and {dearer} than the pick, "
        f"{in_words(found.pick)}."
    )


def in_words(plan: Plan) -> str:
    """
    `2x2 on aws.lambda.1769`, and of unequal members how many stand on what.
    """
    counts = Counter(offer.name for offer in plan.member_offers)
    names = [name if len(counts) == 1 else f"{number} {name}" for name, number in counts.items()]
    return f"{plan.layout} on {', '.join(names)}"


def _candidate_in_words(candidate: Candidate) -> str:
    return f"{candidate.layout} on {', '.join(dict.fromkeys(candidate.offers))}"


def _about(plan: Plan) -> str:
    prediction = plan.prediction
    late = prediction.run_p95_s
    spread = f" (95 of 100 runs at most {format_duration(late)})" if late is not None else ""
    return f"{format_duration(prediction.run_s)}{spread} and costs {format_usd(prediction.run_usd)}"


def _parts_in_words(parts: StepParts) -> str:
    shares = {words: getattr(parts, name) / parts.step_s for name, words in _PARTS.items()}
    return ", ".join(f"{words} ({share:.0%})" for words, share in shares.items() if share >= _ALIKE)


def _compared(other: Plan, pick: Plan) -> str:
    time = _change(other.prediction.run_s, pick.prediction.run_s, "slower", "faster")
    money = _change(other.prediction.run_usd, pick.prediction.run_usd, "dearer", "cheaper")
    return f"{time} and {money}"


def _change(value: float, base: float, more: str, less: str) -> str:
    """`12 % slower`."""
    if base == 0 or abs(value / base - 1) < _ALIKE:
        return f"as {_PLAIN[more]}" if value == base or base else f"{more} by {format_usd(value)}"
    ratio = value / base
    return f"{ratio - 1:.0%} {more}" if ratio > 1 else f"{1 - ratio:.0%} {less}"


_PLAIN = {"slower": "fast", "dearer": "cheap"}


def _because(other: Plan, pick: Plan) -> str:
    """Which part of its step is longer, and by how much."""
    theirs, own = other.prediction.parts, pick.prediction.parts
    if theirs is None or own is None or other.prediction.run_s <= pick.prediction.run_s:
        return ""
    longer = {words: getattr(theirs, name) - getattr(own, name) for name, words in _PARTS.items()}
    words = max(longer, key=lambda part: longer[part])
    if longer[words] <= _ALIKE * theirs.step_s:
        return ""
    return f": each step spends {format_duration(longer[words])} more on {words}"


def _binding(pick: Plan, beyond: Sequence[Plan], limits: Limits, objective: Objective) -> str:
    if limits.deadline_s is None and limits.budget_usd is None:
        return "No deadline and no budget is given."
    better = min(beyond, key=lambda plan: order_of(plan, objective), default=None)
    if better is None or order_of(better, objective)[0] >= order_of(pick, objective)[0]:
        return "No limit binds: nothing beyond them is better."
    broken = broken_limit(better, limits)
    return f"What binds is {broken}; without it, {in_words(better)} would be {_compared(better, pick)}."
