"""What tables, pages and traces say about a step: its actions as bars, and how members used their time."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zooid.core.runs.step_parts import StepParts, parts_by_member, total_parts
from zooid.core.runs.timeline import (
    ActionName,
    Timeline,
    action_name,
    without_waiting,
)
from zooid.core.units import format_duration
from zooid.report.phrases import NOTHING, or_nothing, whole_percent

LANE_NAMES = {"compute": "compute", "uplink": "upload", "downlink": "download", "reduce": "reduce"}
"""Names of the lanes in words, from top to bottom."""

COLORS = {"F": "forward", "B": "backward", "REDUCE": "reduce", "SHARE": "reduce", "COMMIT": "commit"}
"""Colours by kind of action; any other kind has the colour of its lane."""

COLUMNS = {
    "computes": "fraction of the step in which it computes",
    "transfers": "time of its uploads, downloads and reduces, without waiting for others",
    "hidden": "fraction of that time in which it also computes",
    "idle": "fraction of the step in which it neither computes nor transfers",
}
"""The columns of a member's numbers, each with its meaning."""

_WORDS = {
    "F": "forward of grain {}",
    "B": "backward of grain {}",
    "SEND_F": "activations of grain {}, to the next stage",
    "RECV_F": "activations of grain {}, from the stage before",
    "SEND_B": "gradients of grain {}, to the stage before",
    "RECV_B": "gradients of grain {}, from the next stage",
    "REDUCE": "all-reduce of bucket {} over the replicas",
    "SHARE": "sum of tie {} over the stages that have a copy",
    "COMMIT": "commit: vote of all members, then the update",
}
_RENDEZVOUS = ("REDUCE", "SHARE", "COMMIT")
_OF_GRAINS = ("F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B")


@dataclass(frozen=True)
class Bar:
    """One action of one member, drawn in a lane."""

    member: str
    lane: str
    track: int
    """The track in the lane, from 0 on; actions that overlap have different tracks."""
    action: str
    name: ActionName
    posted_s: float
    """When the action was posted; it waited until `start_s`."""
    start_s: float
    end_s: float

    @property
    def color(self) -> str:
        return COLORS.get(self.name.kind, self.lane)

    @property
    def grain(self) -> int | None:
        return self.name.number if self.name.kind in _OF_GRAINS else None

    @property
    def is_rendezvous(self) -> bool:
        """Whether members wait for each other in this action; receives do not count, since they are posted ahead."""
        return self.name.kind in _RENDEZVOUS

    @property
    def words(self) -> str:
        """The action in words."""
        words, number = _WORDS.get(self.name.kind), self.name.number
        return self.action if words is None else words.format("" if number is None else number).replace("  ", " ")


def bars_of(timeline: Timeline) -> list[Bar]:
    """All actions of a step, by member, lane and time."""
    lanes: dict[tuple[str, str], list[Bar]] = defaultdict(list)
    for interval, working in zip(timeline.intervals, without_waiting(timeline).intervals, strict=True):
        lanes[interval.member, interval.lane].append(
            Bar(
                member=interval.member,
                lane=interval.lane,
                track=0,
                action=interval.action,
                name=action_name(interval.action),
                posted_s=interval.start_s,
                start_s=working.start_s,
                end_s=working.end_s,
            )
        )
    return [
        bar
        for member in members_in_order(timeline)
        for lane in LANE_NAMES
        for bar in _in_tracks(lanes.get((member, lane), []))
    ]


def members_in_order(timeline: Timeline) -> list[str]:
    """Names of members by replica and stage: r2s0 before r10s0."""
    return sorted(
        timeline.members, key=lambda name: [(part.isdigit(), part.zfill(12)) for part in _NAME_PARTS.findall(name)]
    )


_NAME_PARTS = re.compile(r"\d+|\D+")


def _in_tracks(bars: Sequence[Bar]) -> list[Bar]:
    """Give each bar the first track that is free."""
    free_s: list[float] = []
    result = []
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        track = next((number for number, until_s in enumerate(free_s) if until_s <= bar.start_s), len(free_s))
        free_s[track : track + 1] = [bar.end_s]
        result.append(replace(bar, track=track))
    return result


def usage_rows(timeline: Timeline) -> list[tuple[str, tuple[str, ...]]]:
    """The name and the cells of each member, in order of COLUMNS; the last row, `all`, is their total."""
    parts = parts_by_member(timeline)
    rows = [(member, _cells(parts[member])) for member in members_in_order(timeline)]
    return [*rows, ("all", _cells(total_parts(parts.values())))]


def _cells(parts: StepParts) -> tuple[str, ...]:
    return (
        whole_percent(parts.compute_fraction),
        format_duration(parts.moving_s) if parts.moving_s else NOTHING,
        or_nothing(parts.hidden_fraction, whole_percent),
        whole_percent(parts.bubble_fraction),
    )
