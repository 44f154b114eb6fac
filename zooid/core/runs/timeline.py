"""When each action of a step ran, or is expected to: the same record for simulated, rehearsed and measured steps.

What follows from it is here as well, since people, benchmarks and pictures must count alike: how much of a step a
member computed, and how much of its transfers was hidden behind that.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from zooid.core.records import FileRecord, InvalidValue, Record

LANES = ("compute", "uplink", "downlink", "reduce")
"""What an action keeps busy. Only `compute` does one thing at a time."""


class Interval(Record, frozen=True, kw_only=True):
    """One action; seconds count from the start of the step."""

    member: str
    lane: str
    """`compute`, `uplink`, `downlink` or `reduce`."""
    action: str
    """Its text form, `2F5`."""
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if self.lane not in LANES:
            raise InvalidValue(f"`lane` of {self.action} is {self.lane!r}; it must be one of {', '.join(LANES)}")
        if self.end_s < self.start_s:
            raise InvalidValue(f"`end_s` of {self.action} is {self.end_s:g}, before its `start_s` {self.start_s:g}")


class Timeline(FileRecord, frozen=True, kw_only=True, tag="timeline"):
    """One step of some or all members."""

    intervals: tuple[Interval, ...]
    start_at_s: float = 0.0
    """Unix time at which the step began on the clock of the member that ran it; 0 where it was simulated."""

    @property
    def step_s(self) -> float:
        return max((interval.end_s for interval in self.intervals), default=0.0)

    @property
    def members(self) -> tuple[str, ...]:
        """In the order of their first appearance."""
        return tuple(dict.fromkeys(interval.member for interval in self.intervals))

    def busy_s(self, member: str, lane: str) -> float:
        """Time that a lane of a member spent in actions; waiting for peers inside a reduce or commit counts."""
        return sum(i.end_s - i.start_s for i in self.intervals if i.member == member and i.lane == lane)


def joined(timelines: Iterable[Timeline]) -> Timeline:
    """What several members recorded of one step, counted from the first one's start."""
    parts = sorted(timelines, key=lambda timeline: timeline.start_at_s)
    start_at_s = parts[0].start_at_s if parts else 0.0
    return Timeline(
        intervals=tuple(
            structs.replace(
                interval,
                start_s=interval.start_s + part.start_at_s - start_at_s,
                end_s=interval.end_s + part.start_at_s - start_at_s,
            )
            for part in parts
            for interval in part.intervals
        ),
        start_at_s=start_at_s,
    )


class ActionName(NamedTuple):
    """The parts of an action's text form; one that has another form is all `kind`."""

    stage: int | None
    kind: str
    number: int | None
    """Of a grain, for a REDUCE of a bucket, for a SHARE of a tie."""


_ACTION = re.compile("([0-9]{1,9})([A-Z_]+)([0-9]{0,9})")


def action_name(text: str) -> ActionName:
    """Read leniently: a record may name actions that this version does not know.

    >>> action_name("2RECV_F5")
    ActionName(stage=2, kind='RECV_F', number=5)
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        return ActionName(None, text, None)
    return ActionName(int(match[1]), match[2], int(match[3]) if match[3] else None)


def without_waiting(timeline: Timeline) -> Timeline:
    """The same intervals in the same order, each from when it could go on.

    A receive is posted before there is something to take, and who is early for an all-reduce waits in it. So a receive
    begins here when its send has ended (until then the message is the sender's), a reduce when the last replica of its
    stage has joined, a commit when the last member has. What an early member could already upload in a reduce is not
    counted. An interval that only waited has no length left.
    """
    sent_s: dict[ActionName, float] = {}
    all_in_s: dict[str, float] = defaultdict(float)
    for interval in timeline.intervals:
        name = action_name(interval.action)
        if name.kind.startswith("SEND_"):
            sent_s[name] = interval.end_s
        elif name.kind in _MEETINGS:
            key = _meeting(interval.action, name)
            all_in_s[key] = max(all_in_s[key], interval.start_s)

    def ready_s(interval: Interval) -> float:
        name = action_name(interval.action)
        if name.kind in _MEETINGS:
            return all_in_s[_meeting(interval.action, name)]
        if name.kind in _SENDERS and name.stage is not None:
            kind, distance = _SENDERS[name.kind]
            return sent_s.get(ActionName(name.stage + distance, kind, name.number), interval.start_s)
        return interval.start_s

    return structs.replace(
        timeline,
        intervals=tuple(
            structs.replace(interval, start_s=min(max(interval.start_s, ready_s(interval)), interval.end_s))
            for interval in timeline.intervals
        ),
    )


_MEETINGS = ("REDUCE", "COMMIT")
_SENDERS = {"RECV_F": ("SEND_F", -1), "RECV_B": ("SEND_B", 1)}
"""Of each receive, the send that it takes from, and how many stages away that is."""


def _meeting(action: str, name: ActionName) -> str:
    """Actions of different members with the same key wait for each other: all commits, the same reduce of a stage."""
    return name.kind if name.kind == "COMMIT" else action


@dataclass(frozen=True)
class Usage:
    """What a member did with a step, or several members with theirs, added up; waiting for others is doing nothing."""

    step_s: float
    """Length of the step, for each member."""
    compute_s: float
    transfer_s: float
    """While something was on its way up, down or in a reduce; not the sum of transfers, which run side by side."""
    hidden_s: float
    """Of the time of transfers, the part in which the member computed, too."""

    @property
    def idle_s(self) -> float:
        """While it neither computed nor transferred."""
        return max(0.0, self.step_s - self.compute_s - (self.transfer_s - self.hidden_s))

    @property
    def compute_share(self) -> float:
        return self.compute_s / self.step_s if self.step_s else 0.0

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.step_s if self.step_s else 0.0

    @property
    def hidden_share(self) -> float | None:
        """Of the time of transfers; None where there were none."""
        return self.hidden_s / self.transfer_s if self.transfer_s else None


def usage_by_member(timeline: Timeline) -> dict[str, Usage]:
    """For each member of a step, in the order of the timeline."""
    computing: dict[str, list[_Span]] = {member: [] for member in timeline.members}
    moving: dict[str, list[_Span]] = {member: [] for member in timeline.members}
    for interval in without_waiting(timeline).intervals:
        of_member = computing if interval.lane == "compute" else moving
        of_member[interval.member].append((interval.start_s, interval.end_s))
    return {member: _usage(timeline.step_s, computing[member], moving[member]) for member in timeline.members}


class StepParts(Record, frozen=True, kw_only=True):
    """Where the time of a step goes, on the member that computes longest; the parts sum to the step."""

    member: str
    compute_s: float
    transfer_s: float
    """While messages were on their way and nothing was computed."""
    reduce_s: float
    """While gradients were, and nothing else was going on."""
    bubble_s: float
    """While it waited for others."""
    moving_s: float
    """While anything was on its way, hidden behind computing or not."""

    @property
    def step_s(self) -> float:
        return self.compute_s + self.transfer_s + self.reduce_s + self.bubble_s

    @property
    def granularity(self) -> float | None:
        """Time of computing over time of communicating; None where nothing is communicated."""
        return self.compute_s / self.moving_s if self.moving_s else None


def parts_of_step(timeline: Timeline) -> StepParts:
    """Of the member that computes longest, the first of several."""
    spans = _spans_by_kind(timeline)
    member = max(timeline.members, key=lambda name: _covered_s(spans[name]["compute"]))
    return _parts(member, spans[member], timeline.step_s)


def parts_by_member(timeline: Timeline) -> dict[str, StepParts]:
    """Of every member, in the order of the timeline."""
    return {member: _parts(member, own, timeline.step_s) for member, own in _spans_by_kind(timeline).items()}


def _spans_by_kind(timeline: Timeline) -> "dict[str, dict[str, list[_Span]]]":
    spans: dict[str, dict[str, list[_Span]]] = {member: defaultdict(list) for member in timeline.members}
    for interval in without_waiting(timeline).intervals:
        kind = {"compute": "compute", "reduce": "reduce"}.get(interval.lane, "transfer")
        spans[interval.member][kind].append((interval.start_s, interval.end_s))
    return spans


def _parts(member: str, own: "dict[str, list[_Span]]", step_s: float) -> StepParts:
    compute_s = _covered_s(own["compute"])
    with_transfers_s = _covered_s(own["compute"] + own["transfer"])
    busy_s = _covered_s(own["compute"] + own["transfer"] + own["reduce"])
    return StepParts(
        member=member,
        compute_s=compute_s,
        transfer_s=max(0.0, with_transfers_s - compute_s),
        reduce_s=max(0.0, busy_s - with_transfers_s),
        bubble_s=max(0.0, step_s - busy_s),
        moving_s=_covered_s(own["transfer"] + own["reduce"]),
    )


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Of several members together: every time is a sum, so that shares are means over their time."""
    members = list(usages)
    return Usage(
        step_s=sum(usage.step_s for usage in members),
        compute_s=sum(usage.compute_s for usage in members),
        transfer_s=sum(usage.transfer_s for usage in members),
        hidden_s=sum(usage.hidden_s for usage in members),
    )


def hidden_share(timeline: Timeline, member: str | None = None) -> float | None:
    """Of the time in which a member transferred, or all members did, the share in which it computed as well.

    None where nothing was transferred.
    """
    usages = usage_by_member(timeline)
    return (total_usage(usages.values()) if member is None else usages[member]).hidden_share


_Span = tuple[float, float]


def _usage(step_s: float, computing: list[_Span], moving: list[_Span]) -> Usage:
    compute_s, transfer_s = _covered_s(computing), _covered_s(moving)
    both_s = compute_s + transfer_s - _covered_s(computing + moving)
    hidden_s = min(max(0.0, both_s), transfer_s)  # the last digits of a difference may stray
    return Usage(step_s=step_s, compute_s=compute_s, transfer_s=transfer_s, hidden_s=hidden_s)


def _covered_s(spans: list[_Span]) -> float:
    """Length of the union."""
    total_s = 0.0
    reached_s = float("-inf")
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, reached_s))
        reached_s = max(reached_s, end_s)
    return total_s
