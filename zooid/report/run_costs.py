"""The cost of a run so far, as far as its events tell it."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from zooid.core.runs.events import (
    Event,
    MemberExited,
    MembersAdopted,
    MemberTrained,
    Metered,
    RosterChanged,
    RunFinished,
    RunStarted,
)
from zooid.core.runs.observed_run import ENDED, ObservedRun


def cost_so_far(observed: ObservedRun) -> float | None:
    """The cost of the run since it began; None if a part of it is not known.

    A stored bill has everything from the first claim with such bills on. Runs of older versions have none, and their
    members count at the plan's prices.
    """
    bills = [(number, event) for number, event in enumerate(observed.events) if isinstance(event, Metered)]
    if bills:
        before = list(_parts(observed.events[: bills[0][0]]))[:-1]
        unbilled = [_ended_usd(part) for part in before]
        return (
            None if None in unbilled else math.fsum([usd for usd in unbilled if usd is not None] + [_billed(observed)])
        )
    earlier, present = observed.events[: observed.num_earlier], observed.events[observed.num_earlier :]
    parts = [_ended_usd(part) for part in _parts(earlier)]
    parts.append(_present_usd(observed, present))
    return None if None in parts else math.fsum(usd for usd in parts if usd is not None)


def _billed(observed: ObservedRun) -> float:
    """The last bill, and what the run has cost since then as far as it goes on."""
    last = [event for event in observed.events if isinstance(event, Metered | RunFinished)][-1]
    if isinstance(last, RunFinished) or observed.state in ENDED:
        return last.usd
    return last.usd + last.usd_per_s * max(0.0, observed.at_s - last.at_s)


def _parts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Cut the events wherever members were started. A coordinator that adopts members starts none."""
    adopted = [index for index, event in enumerate(events) if isinstance(event, MembersAdopted)]
    starts = [index for index, event in enumerate(events) if isinstance(event, RunStarted)]
    continued = {max((start for start in starts if start < index), default=-1) for index in adopted}
    cuts = [start for start in starts if start not in continued]
    for begin, end in pairwise([*cuts, len(events)]):
        yield list(events[begin:end])


def _ended_usd(part: Sequence[Event]) -> float | None:
    """The cost of a part that has ended: as reported, or at the predicted cost of its time."""
    reported = [event.usd for event in part if isinstance(event, RunFinished)]
    if reported:
        return reported[-1]
    start = part[0]
    assert isinstance(start, RunStarted)
    if start.predicted_usd is None or not start.predicted_run_s:
        return None
    return start.predicted_usd * (part[-1].at_s - start.at_s) / start.predicted_run_s


def _present_usd(observed: ObservedRun, present: Sequence[Event]) -> float | None:
    """The cost of the present members, each from the start of the run until its end or until now."""
    starts = [event for event in present if isinstance(event, RunStarted)]
    if not starts or observed.plan is None or observed.first_roster is None:
        return 0.0
    reported = [event.usd for event in present if isinstance(event, RunFinished)]
    if reported:
        return reported[-1]
    offers = observed.plan.member_offers
    if not any(offer.usd_per_hour or offer.usd_per_start for offer in offers):
        return 0.0
    from zooid.predictor import bill_usd  # imports numpy and the simulator

    until_s = present[-1].at_s if observed.state in ENDED else observed.at_s
    ends = _ends(present)
    return math.fsum(
        bill_usd(offer, max(0.0, ends.get(seat.name, until_s) - starts[0].at_s))
        for seat, offer in zip(observed.first_roster.seats, offers, strict=False)
    )


def _ends(present: Sequence[Event]) -> dict[str, float]:
    """When each member ended that no longer trains."""
    ends: dict[str, float] = {}
    members: set[str] = set()
    for event in present:
        match event:
            case RunStarted():
                members |= set(event.members)
            case MemberExited() | MemberTrained():
                ends.setdefault(event.member, event.at_s)
            case RosterChanged():
                for name in members.difference(event.members):
                    ends.setdefault(name, event.at_s)
    return ends
