"""What happened in a run and why, in words, from its events."""

from collections.abc import Iterable

from zooid.core.records import Record
from zooid.core.runs.events import (
    BatchChanged,
    Event,
    FleetChosen,
    LimitsEndangered,
    MemberExited,
    MembersAdopted,
    OptimizerChanged,
    PriceChanged,
    RosterChanged,
    RunFinished,
    RunStarted,
    ScalingWanted,
    StoppedEarly,
)
from zooid.core.units import format_duration, format_usd
from zooid.report.phrases import count_in_words

_RULINGS = {
    "stands": "the step in flight stands",
    "unfinished": "the lost part of the step in flight is computed again",
    "rolled_back": "all go back to the last checkpoint",
}


class RunChange(Record, frozen=True, kw_only=True):
    """One thing that changed in a run."""

    at_s: float
    """Unix time on the clock of whoever reported it."""
    step: int | None
    """Number of steps before it, if it is known."""
    text: str
    """What changed and why, in words."""


def changes_in(events: Iterable[Event]) -> list[RunChange]:
    """List what changed, in the order of the events."""
    changes: list[RunChange] = []
    members: tuple[str, ...] = ()
    start: RunStarted | None = None
    for event in events:
        step: int | None = None
        text = ""
        match event:
            case RunStarted():
                start, members = event, event.members
                continue_from, verb = event.first_step, "resumed" if event.first_step else "began"
                step = continue_from
                text = f"{verb} as {event.layout} with {count_in_words(len(members), 'member')}"
            case MembersAdopted():
                if changes and start is not None and changes[-1].at_s == start.at_s:
                    changes.pop()  # the members have not started anew
                step, members = event.step, event.members
                text = f"another coordinator adopted {_names(members)}"
            case MemberExited():
                text = f"{event.member} {event.exit_text}"
            case RosterChanged():
                lost = [name for name in members if name not in event.members]
                step, members = event.step, event.members
                why = f"without {_names(lost)}" if lost else "under a new roster"
                text = (
                    f"{_names(members)} {'goes' if len(members) == 1 else 'go'} on {why} after "
                    f"{format_duration(event.wall_s)}: {_RULINGS.get(event.ruling, event.ruling)}"
                )
            case BatchChanged():
                step = event.step
                text = f"batches of {event.batch_size} samples, learning rate × {event.rate_factor:g}"
            case ScalingWanted() if event.num_replicas is not None:
                step = event.step
                text = f"the scaling policy wants {count_in_words(event.num_replicas, 'replica')}"
            case PriceChanged():
                prices = f"{format_usd(event.usd_per_hour)} an hour instead of {format_usd(event.before_usd_per_hour)}"
                text = f"the price of {event.offer} is now {prices}"
            case LimitsEndangered():
                text = f"{event.reason}; {event.would_hold}"
            case FleetChosen():
                text = f"switching to {event.fleet}, since {event.reason}: {event.because}"
            case StoppedEarly():
                step = event.step
                text = f"stopped: {event.reason}" if event.by_request else f"stopped early: {event.reason}"
            case OptimizerChanged():
                text = "the optimizer has other settings than the checkpoint: " + ", ".join(
                    f"{name} {' and '.join(values)}"
                    for name, values in event.settings.items()
                    if event.before.get(name) != values
                )
            case RunFinished():
                text = f"all members have ended after {format_duration(event.wall_s)}"
        if text:
            changes.append(RunChange(at_s=event.at_s, step=step, text=text))
    return changes


def _names(members: Iterable[str]) -> str:
    """
    >>> _names(["r0s0", "r0s1", "r1s0"])
    'r0s0, r0s1 and r1s0'
    """
    *others, last = members
    return f"{', '.join(others)} and {last}" if others else last
