"""Sentences that explain why a plan was picked, and why another was not."""

from collections import Counter
from collections.abc import Sequence

from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.search_result import Candidate, Search, Verdict
from zooid.core.runs.step_parts import StepParts
from zooid.core.units import format_duration, format_usd
from zooid.planner.infeasible import broken_limit
from zooid.planner.market import is_named
from zooid.planner.objectives import Objective, objective_of, order_of
from zooid.predictor.losses.loss_sentences import losses_in_words, unknown_in_words

_ALIKE = 0.005
"""Relative difference below which two times or costs count as equal."""
_MAX_NAMES = 3
"""Number of left-out offers that a sentence names."""
_INFEASIBLE: dict[Verdict, str] = {
    "too large": "fits",
    "hopeless": "can finish",
    "beyond a limit": "is within the limits",
}
"""Verdicts about infeasible candidates, and what candidates with that verdict fail to do."""
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
    """Explain the pick: its time and cost, how its steps divide, why the runner-up lost, and which limit binds.

    `beyond` are plans that would break a limit.
    """
    sentences = [f"{in_words(pick)} takes {_time_and_cost(pick)}."]
    if pick.why_whole:
        sentences.append(f"The model is trained as one stage, without a pipeline: {pick.why_whole}.")
    if pick.prediction.parts is not None and pick.prediction.step_s > 0:
        sentences.append(f"A step of it goes into {_parts_in_words(pick.prediction.parts)}.")
    sentences += losses_in_words(pick.prediction.losses)
    sentences += [f"{sentence}." for sentence in unknown_in_words(pick.prediction.losses)]
    if runner_up is not None:
        compared = f"{_compared(runner_up, pick)}{_because(runner_up, pick)}"
        sentences.append(f"The runner-up, {in_words(runner_up)}, is {compared}.")
    sentences.append(_binding(pick, beyond, limits, objective))
    if pick.num_members == limits.max_members and limits.num_replicas is None:
        sentences.append(f"It uses all of the {limits.max_members} members that are allowed; more may be better.")
    return tuple(sentences)


def left_out_in_words(offers: Sequence[str], reason: str) -> str:
    """Say why offers are left out.

    >>> left_out_in_words(["a", "b", "c", "d", "e"], "nobody knows its price")
    'a, b, c and 2 more are left out: nobody knows its price.'
    """
    shown, num_more = ", ".join(offers[:_MAX_NAMES]), len(offers) - _MAX_NAMES
    names = f"{shown} and {num_more} more" if num_more > 0 else shown
    return f"{names} {'is' if len(offers) == 1 else 'are'} left out: {reason}."


def why_not(search: Search, name: str) -> str:
    """Explain why no plan was picked on this offer, or on the offers whose names begin with this name."""
    sentences = [
        left_out_in_words(names, left_out.reason)
        for left_out in search.left_out
        if (names := [offer for offer in left_out.offers if is_named(offer, name)])
    ]
    candidates = [
        candidate for candidate in search.candidates if any(is_named(offer, name) for offer in candidate.offers)
    ]
    if candidates:
        sentences.insert(0, _why_not_picked(search, name, candidates))
    if not sentences:
        offers = dict.fromkeys(offer for candidate in search.candidates for offer in candidate.offers)
        raise InputError(f"nothing was planned on {name}; the candidates run on {', '.join(offers)}; name one of them")
    return " ".join(sentences)


def _why_not_picked(search: Search, name: str, candidates: Sequence[Candidate]) -> str:
    if any(is_named(offer.name, name) for offer in search.pick.member_offers):
        return f"{name} is in the pick: {in_words(search.pick)}."
    objective = objective_of(search.goal, search.hour_usd)
    feasible = [candidate for candidate in candidates if candidate.verdict not in _INFEASIBLE]
    closest = min(feasible or candidates, key=lambda candidate: objective(candidate.run_s, candidate.run_usd))
    layout = f"{closest.layout} on {', '.join(dict.fromkeys(closest.offers))}"
    if not feasible:
        what = _INFEASIBLE[closest.verdict]
        return f"No plan on {name} {what}: of {layout}, {closest.reason}."
    at_best = "" if closest.is_simulated else "at best "
    slower = _change(closest.run_s, search.pick.prediction.run_s, "slower", "faster")
    dearer = _change(closest.run_usd, search.pick.prediction.run_usd, "dearer", "cheaper")
    return (
        f"The best on {name}, {layout}, takes {at_best}{format_duration(closest.run_s)} and costs {at_best}"
        f"{format_usd(closest.run_usd)}: {slower} and {dearer} than the pick, {in_words(search.pick)}."
    )


def in_words(plan: Plan) -> str:
    """The layout and offers of a plan, as `2x2 on aws.lambda.1769`. Members are counted if their offers differ."""
    counts = Counter(offer.name for offer in plan.member_offers)
    names = [name if len(counts) == 1 else f"{number} {name}" for name, number in counts.items()]
    return f"{plan.layout}{' with copies' if plan.num_copies else ''} on {', '.join(names)}"


def _time_and_cost(plan: Plan) -> str:
    prediction = plan.prediction
    late_s = prediction.run_p95_s
    spread = f" (95 of 100 runs at most {format_duration(late_s)})" if late_s is not None else ""
    return f"{format_duration(prediction.run_s)}{spread} and costs {format_usd(prediction.run_usd)}"


def _parts_in_words(parts: StepParts) -> str:
    fractions = {words: getattr(parts, name) / parts.step_s for name, words in _PARTS.items()}
    return ", ".join(f"{words} ({fraction:.0%})" for words, fraction in fractions.items() if fraction >= _ALIKE)


def _compared(other: Plan, pick: Plan) -> str:
    time = _change(other.prediction.run_s, pick.prediction.run_s, "slower", "faster")
    money = _change(other.prediction.run_usd, pick.prediction.run_usd, "dearer", "cheaper")
    return f"{time} and {money}"


def _change(value: float, base: float, more: str, less: str) -> str:
    """A relative difference, as `12 % slower`."""
    if base == 0 or abs(value / base - 1) < _ALIKE:
        equal = {"slower": "fast", "dearer": "cheap"}[more]
        return f"as {equal}" if value == base or base else f"{more} by {format_usd(value)}"
    ratio = value / base
    return f"{ratio - 1:.0%} {more}" if ratio > 1 else f"{1 - ratio:.0%} {less}"


def _because(other: Plan, pick: Plan) -> str:
    """Say which part of the other plan's step takes longer than the pick's, and by how much."""
    other_parts, pick_parts = other.prediction.parts, pick.prediction.parts
    if other_parts is None or pick_parts is None or other.prediction.run_s <= pick.prediction.run_s:
        return ""
    longer_s = {words: getattr(other_parts, name) - getattr(pick_parts, name) for name, words in _PARTS.items()}
    words = max(longer_s, key=lambda part: longer_s[part])
    if longer_s[words] <= _ALIKE * other_parts.step_s:
        return ""
    return f": each step spends {format_duration(longer_s[words])} more on {words}"


def _binding(pick: Plan, beyond: Sequence[Plan], limits: Limits, objective: Objective) -> str:
    """Say which limit excludes a better plan, if one does."""
    if limits.deadline_s is None and limits.budget_usd is None:
        return "No deadline and no budget is given."
    better = min(beyond, key=lambda plan: order_of(plan, objective), default=None)
    if better is None or order_of(better, objective)[0] >= order_of(pick, objective)[0]:
        return "No limit binds: nothing beyond them is better."
    broken = broken_limit(better, limits)
    return f"What binds is {broken}; without it, {in_words(better)} would be {_compared(better, pick)}."
