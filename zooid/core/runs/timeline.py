"""Timelines: when each action of a step ran, in one record for simulated, rehearsed and measured steps."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from zooid.core.records import FileRecord, InvalidValue, Record

LANES = ("compute", "uplink", "downlink", "reduce")
"""Resources of a member that actions occupy. Only `compute` runs one action at a time."""


class Interval(Record, frozen=True, kw_only=True):
    """One action of a member; seconds count from the start of the step."""

    member: str
    lane: str
    """`compute`, `uplink`, `downlink` or `reduce`."""
    action: str
    """Text form of the action, such as `2F5`."""
    start_s: float
    end_s: float

    def __post_init__(self) -> None:  # without `require`, which would format both messages for every interval
        if self.lane not in LANES:
            raise InvalidValue(f"`lane` of {self.action} is {self.lane!r}; it must be one of {', '.join(LANES)}")
        if self.end_s < self.start_s:
            raise InvalidValue(f"`end_s` of {self.action} is {self.end_s:g}; it must not be before {self.start_s:g}")


class Timeline(FileRecord, frozen=True, kw_only=True, tag="timeline"):
    """The actions of some or all members in one step."""

    intervals: tuple[Interval, ...]
    start_at_s: float = 0.0
    """Unix time of the step's start on the clock of the member that ran it; 0 if it was simulated."""

    @property
    def step_s(self) -> float:
        return max((interval.end_s for interval in self.intervals), default=0.0)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members in the order of their first intervals."""
        return tuple(dict.fromkeys(interval.member for interval in self.intervals))


def joined(timelines: Iterable[Timeline]) -> Timeline:
    """Merge the timelines that several members recorded of one step; time 0 is the earliest start."""
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
    """The parts of an action's text form; an unknown form is all `kind`."""

    stage: int | None
    kind: str
    number: int | None
    """Number of the grain; of the bucket in a REDUCE, of the tie in a SHARE."""


_ACTION = re.compile("([0-9]{1,9})([A-Z_]+)([0-9]{0,9})")


def action_name(text: str) -> ActionName:
    """Parse an action leniently, because a record may name actions that this version does not know.

    >>> action_name("2RECV_F5")
    ActionName(stage=2, kind='RECV_F', number=5)
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        return ActionName(None, text, None)
    return ActionName(int(match[1]), match[2], int(match[3]) if match[3] else None)


_RENDEZVOUS = ("REDUCE", "COMMIT")
"""Actions in which members wait for each other."""
_SENDERS = {"RECV_F": ("SEND_F", -1), "RECV_B": ("SEND_B", 1)}
"""The send that matches each receive, and the distance to its stage."""


def without_waiting(timeline: Timeline) -> Timeline:
    """Return the same intervals in the same order, each starting when its action could proceed.

    A receive is posted before its message is sent, and an early member waits in an all-reduce. So a receive starts here
    when its send has ended. A reduce starts when the last replica of its stage has joined, and a commit when the last
    member has. Uploads of an early member in a reduce are not counted. An interval that only waited is empty.
    """
    sent_s: dict[ActionName, float] = {}
    all_joined_s: dict[str, float] = defaultdict(float)
    for interval in timeline.intervals:
        name = action_name(interval.action)
        if name.kind.startswith("SEND_"):
            sent_s[name] = interval.end_s
        elif name.kind in _RENDEZVOUS:
            key = _rendezvous(interval.action, name)
            all_joined_s[key] = max(all_joined_s[key], interval.start_s)

    def ready_s(interval: Interval) -> float:
        name = action_name(interval.action)
        if name.kind in _RENDEZVOUS:
            return all_joined_s[_rendezvous(interval.action, name)]
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


def _rendezvous(action: str, name: ActionName) -> str:
    """Return the key of actions that wait for each other: all commits, or the same reduce of a stage."""
    return name.kind if name.kind == "COMMIT" else action
