"""The policy of a run: on which fleet it goes on, so that its limits hold at the lowest cost.

A fleet is *safe* until the next look if the run could then lose all members that can be preempted, and some fleet on
demand would still hold the limits, with its start-up and with repeated steps counted, and even if its steps took a
little longer than predicted. Of the safe fleets, the cheapest is chosen. Waiting for a cheaper offer is one of them. If
none is safe, a fleet on demand that holds the limits as predicted is taken at once. So the deadline holds wherever a
fleet on demand from the start would hold it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zooid.coordinator.policy.situation import FleetOption, Situation
from zooid.core.units import format_duration, format_usd

MoveKind = Literal["keep", "switch", "wait", "stop"]
_WORTH_SWITCHING = 0.02
"""Part of the remaining cost that a switch must save, since predictions are not exact."""
_LONGER_STEPS = 0.05
"""Part by which steps on demand may be longer than predicted, for which safe fleets leave time and money."""
_LONGER_STEPS_AT_FIRST = 0.075
"""The same for fleets that are chosen anew, so that a run does not change to and fro when its pace varies a little."""


@dataclass(frozen=True)
class NextMove:
    """What a run should do until the next look."""

    kind: MoveKind
    fleet: FleetOption | None
    """The fleet to train on; None to wait without members, or to stop."""
    because: str
    warning: str = ""
    """Which limits nothing can hold; empty if something can."""
    would_hold: str = ""
    """Which limits would hold, if nothing holds the present ones."""


@dataclass(frozen=True)
class Projection:
    """The end of a run on a fleet, if no member is lost."""

    option: FleetOption
    end_at_s: float
    usd: float


def decide(situation: Situation, options: Sequence[FleetOption]) -> NextMove:
    """Return what to do next. `options` are all fleets of the market, whether they can be had now or not."""
    warning, would_hold = _impossible(situation, options)
    if reason := _reason_to_stop(situation):
        return NextMove("stop", None, reason, warning, would_hold)
    now = [option for option in _with_current(situation, options) if can_be_had(situation, option)]
    fallbacks = [option for option in options if _is_reliable(situation, option)]
    ranked = sorted((project(situation, option) for option in now), key=lambda each: _preference(situation, each))
    judged = _judged_for_safety(situation, fallbacks)
    best = next((each for each in ranked if _is_safe(judged, each.option, fallbacks)), None)
    best = best or next((each for each in ranked if _is_certain(judged, each)), None)
    is_safe = best is not None  # or at least certain, if there is no time to be safe
    best = best or next(iter(ranked), None)
    can_wait = _is_safe(judged, None, fallbacks)
    if _should_wait(situation, options, best, is_safe=is_safe, can_wait=can_wait):
        return NextMove("wait", None, "a cheaper fleet may come, and there is time for it", warning, would_hold)
    if best is None:
        return NextMove("wait", None, "no fleet can be had now", warning, would_hold)
    kept = next((each for each in ranked if each.option == situation.current), None)
    if kept is not None and is_safe and not (_is_safe(judged, kept.option, fallbacks) or _is_certain(judged, kept)):
        kept = None
    if kept is not None and not situation.seeks_savings and _holds(situation, kept.end_at_s, kept.usd):
        return NextMove("keep", situation.current, "the present fleet holds the limits", warning, would_hold)
    if kept is not None and not _is_worth_switching(situation, kept, best):
        return NextMove("keep", situation.current, "no other fleet is better by enough", warning, would_hold)
    because = _why(situation, kept, best, is_safe=is_safe)
    return NextMove("switch", best.option, because, warning, would_hold)


def project(situation: Situation, option: FleetOption) -> Projection:
    """Return when and at what cost the run ends on a fleet. The present one trains until the new members are ready."""
    current, running = situation.current, situation.kept_by(option)
    startup_s = situation.startup_s(option, running)
    num_left, usd = situation.num_steps_left, situation.spent_usd
    if startup_s > 0:
        started = {offer: number - running.get(offer, 0) for offer, number in option.members}
        starting = FleetOption(tuple((offer, number) for offer, number in started.items() if number > 0), math.inf)
        usd += startup_s * (situation.usd_per_s(current) + situation.usd_per_s(starting))
        num_left = max(0.0, num_left - (0.0 if current is None else startup_s / current.step_s))
    training_s = num_left * option.step_s + situation.closing_s
    usd += training_s * situation.usd_per_s(option)
    return Projection(option, situation.now_s + startup_s + training_s, usd)


def _with_current(situation: Situation, options: Sequence[FleetOption]) -> list[FleetOption]:
    """Return all options, with the measured step time for the present fleet."""
    current = situation.current
    if current is None:
        return list(options)
    return [current, *(option for option in options if option.key != current.key)]


def can_be_had(situation: Situation, option: FleetOption) -> bool:
    """Whether a fleet could be started now: its offers are available, and none of them is avoided."""
    running = situation.kept_by(option)
    for offer, number in option.members:
        if number > situation.offers[offer].num_available:
            return False
        if number > running.get(offer, 0) and situation.is_avoided(offer):
            return False
    return True


def _judged_for_safety(situation: Situation, fallbacks: Sequence[FleetOption]) -> Situation:
    """Return the situation by which fleets are safe or not: without the budget if no fleet on demand could be paid.

    A run that can pay for such a fleet, or has one, keeps it so. One that cannot yet would waste its budget if it
    switched as soon as it can: on cheap members, what is left shrinks faster than the budget. The hard limit protects
    the budget anyway.
    """
    current, timed = situation.current, replace(situation, budget_usd=None)
    has_one = current is not None and _is_certain(situation, project(situation, current))
    is_only_dear = not _is_safe(situation, None, fallbacks) and _is_safe(timed, None, fallbacks)
    return timed if is_only_dear and not has_one else situation


def _is_reliable(situation: Situation, option: FleetOption) -> bool:
    return all(situation.offers[offer].is_reliable for offer, _ in option.members)


def _is_safe(situation: Situation, option: FleetOption | None, fallbacks: Sequence[FleetOption]) -> bool:
    """Whether one of these reliable fleets would hold the limits if all others were lost just before the next look."""
    if situation.deadline_at_s is None and situation.budget_usd is None:
        return True
    running = {} if option is None else situation.kept_by(option)
    counts = {} if option is None else option.counts
    reliable = {offer: number for offer, number in counts.items() if situation.offers[offer].is_reliable}
    training_s = situation.look_s if option is None else situation.look_s - situation.startup_s(option, running)
    num_left = situation.num_steps_left
    if option is not None and reliable:  # whoever stays keeps the state, so that no step is lost
        num_left -= max(0.0, training_s) / option.step_s
    else:
        num_left += situation.num_steps_at_risk
    usd = situation.spent_usd + situation.look_s * max(
        situation.usd_per_s(option), situation.usd_per_s(situation.current)
    )
    longer = 1 + (_LONGER_STEPS if option == situation.current else _LONGER_STEPS_AT_FIRST)
    for fallback in fallbacks:
        needed_s = max(0.0, num_left) * fallback.step_s * longer + situation.closing_s
        needed_s += situation.startup_s(fallback, reliable)
        end_at_s = situation.now_s + situation.look_s + needed_s
        if _holds(situation, end_at_s, usd + needed_s * situation.usd_per_s(fallback)):
            return True
    return False


def _is_certain(situation: Situation, projection: Projection) -> bool:
    """Whether a fleet cannot be preempted and holds the limits as predicted."""
    return _is_reliable(situation, projection.option) and _holds(situation, projection.end_at_s, projection.usd)


def _holds(situation: Situation, end_at_s: float, usd: float) -> bool:
    is_late = situation.deadline_at_s is not None and end_at_s > situation.deadline_at_s + 1e-6
    is_dear = situation.budget_usd is not None and usd > situation.budget_usd * (1 + 1e-9)
    return not is_late and not is_dear


def _preference(situation: Situation, projection: Projection) -> tuple[bool, float, float]:
    """Return the order of fleets: those that hold the limits first, then cheap ones, then fast ones.

    If none holds them and there is no budget, fast ones come first.
    """
    holds = _holds(situation, projection.end_at_s, projection.usd)
    usd = round(projection.usd, 9)
    if not holds and situation.budget_usd is None:
        return True, projection.end_at_s, usd
    return not holds, usd, projection.end_at_s


def _should_wait(
    situation: Situation,
    options: Sequence[FleetOption],
    best: Projection | None,
    *,
    is_safe: bool,
    can_wait: bool,
) -> bool:
    """Whether to have no members until the next look, because a fleet that cannot be had now may come.

    If there is a safe fleet, waiting must be safe, too, and the other fleet must be cheaper by enough. If there is
    none, the run waits only for a fleet that would hold the limits while no present one does. A run that has not begun
    waits until nothing can hold them, because it is then not begun at all.
    """
    absent = [option for option in options if not can_be_had(situation, option)]
    holds = best is not None and _holds(situation, best.end_at_s, best.usd)
    if is_safe and best is not None and holds:
        if situation.deadline_at_s is None or not can_wait:
            return False
        enough_usd = best.usd - _WORTH_SWITCHING * (best.usd - situation.spent_usd)
        return any(project(situation, option).usd < enough_usd for option in absent)
    if holds:
        return False
    later = [project(situation, option) for option in absent]
    wait_s = situation.look_s if situation.has_begun else 0.0
    return any(_holds(situation, each.end_at_s + wait_s, each.usd) for each in later)


def _is_worth_switching(situation: Situation, kept: Projection, best: Projection) -> bool:
    if best.option == kept.option:
        return False
    if _preference(situation, best)[0] != _preference(situation, kept)[0]:
        return True
    if _preference(situation, best)[0] and situation.budget_usd is None:
        return best.end_at_s < kept.end_at_s - _WORTH_SWITCHING * (kept.end_at_s - situation.now_s)
    saved_usd = kept.usd - best.usd
    is_faster = best.end_at_s < kept.end_at_s - _WORTH_SWITCHING * (kept.end_at_s - situation.now_s)
    return saved_usd > _WORTH_SWITCHING * (kept.usd - situation.spent_usd) or (is_faster and saved_usd >= -1e-9)


def _why(situation: Situation, kept: Projection | None, best: Projection, *, is_safe: bool) -> str:
    if not is_safe and _holds(situation, best.end_at_s, best.usd):
        return "it holds the limits if it stays, and no fleet on demand would"
    if not is_safe:
        return "no fleet on demand would hold the limits, and this one comes closest"
    if situation.current is None:
        return f"it is the cheapest safe fleet, and ends for {format_usd(best.usd)}"
    if kept is None:
        return "the present fleet is lost or no longer safe, and this is the cheapest that is"
    return f"it ends for {format_usd(best.usd)} instead of {format_usd(kept.usd)}"


def _reason_to_stop(situation: Situation) -> str:
    """Say why not even one more step can be made within the limits; empty if it can."""
    if situation.num_steps_left <= 0:
        return "all steps are done"
    step_s = 0.0 if situation.current is None else situation.current.step_s
    end_at_s = situation.now_s + step_s + situation.closing_s
    usd = situation.spent_usd + (step_s + situation.closing_s) * situation.usd_per_s(situation.current)
    if situation.deadline_at_s is not None and end_at_s > situation.deadline_at_s:
        return "another step would end after the deadline"
    if situation.budget_usd is not None and usd > situation.budget_usd:
        return f"another step would cost more than the budget of {format_usd(situation.budget_usd)}"
    return ""


def _impossible(situation: Situation, options: Sequence[FleetOption]) -> tuple[str, str]:
    """Say that nothing can hold the limits, even if every fleet could be had and stayed, and what would hold."""
    if situation.deadline_at_s is None and situation.budget_usd is None:
        return "", ""
    projections = [project(situation, option) for option in _with_current(situation, options)]
    if not projections or any(_holds(situation, each.end_at_s, each.usd) for each in projections):
        return "", ""
    soonest = min(projections, key=lambda each: (each.end_at_s, each.usd))
    cheapest = min(projections, key=lambda each: (each.usd, each.end_at_s))
    texts = []
    if situation.deadline_at_s is not None and soonest.end_at_s > situation.deadline_at_s:
        late = format_duration(soonest.end_at_s - situation.deadline_at_s)
        texts.append(f"the fastest fleet, {soonest.option}, ends {late} after the deadline")
    if situation.budget_usd is not None and cheapest.usd > situation.budget_usd:
        texts.append(
            f"the cheapest fleet, {cheapest.option}, costs {format_usd(cheapest.usd)} of "
            f"{format_usd(situation.budget_usd)}"
        )
    warning = " and ".join(texts) or "no fleet holds both the deadline and the budget"
    return warning, _what_would_hold(situation, projections, soonest, cheapest)


def _what_would_hold(
    situation: Situation, projections: Sequence[Projection], soonest: Projection, cheapest: Projection
) -> str:
    """Say which limits would hold: a larger budget within the deadline, or a later deadline within the budget."""
    in_time = [each for each in projections if _holds_deadline(situation, each)]
    in_budget = [each for each in projections if situation.budget_usd is None or each.usd <= situation.budget_usd]
    offers = []
    if in_time:
        least = min(in_time, key=lambda each: each.usd)
        offers.append(f"a budget of {format_usd(least.usd)} ({least.option})")
    if in_budget and situation.deadline_at_s is not None:
        first = min(in_budget, key=lambda each: each.end_at_s)
        later = format_duration(first.end_at_s - situation.deadline_at_s)
        offers.append(f"a deadline that is {later} later ({first.option})")
    if not offers and situation.deadline_at_s is not None:
        later = format_duration(soonest.end_at_s - situation.deadline_at_s)
        offers.append(f"a deadline that is {later} later with a budget of {format_usd(soonest.usd)} ({soonest.option})")
    return f"{' or '.join(offers)} would hold"


def _holds_deadline(situation: Situation, projection: Projection) -> bool:
    return situation.deadline_at_s is None or projection.end_at_s <= situation.deadline_at_s
