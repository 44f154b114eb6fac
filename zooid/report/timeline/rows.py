"""A step as bars: who, in which lane, from when to when. Pages and traces show the same ones."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zooid.core.runs.timeline import ActionName, Timeline, action_name, without_waiting

LANE_NAMES = {"compute": "compute", "uplink": "upload", "downlink": "download", "reduce": "reduce"}
"""As people read them, in the order from top to bottom."""

COLORS = {"F": "forward", "B": "backward", "REDUCE": "reduce", "SHARE": "reduce", "COMMIT": "commit"}
"""By kind of action; one that is not here has the colour of its lane."""

_WORDS = {
    "F": "forward of grain {}",
    "B": "backward of grain {}",
    "SEND_F": "activations of grain {}, to the next stage",
    "RECV_F": "activations of grain {}, from the stage before",
    "SEND_B": "gradients of grain {}, to the stage before",
    "RECV_B": "gradients of grain {}, from the next stage",
    "REDUCE": "all-reduce of bucket {} over the replicas",
    "SHARE": "sum of tie {} over the stages that share it",
    "COMMIT": "commit: vote of all members, then the update",
}
_MEETINGS = ("REDUCE", "SHARE", "COMMIT")
_OF_GRAINS = ("F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B")


@dataclass(frozen=True)
class Bar:
    """One action."""

    member: str
    lane: str
    track: int
    """Actions of a lane that run side by side have tracks of their own, from 0 on."""
    action: str
    name: ActionName
    posted_s: float
    """When it began, and waited until `start_s`."""
    start_s: float
    end_s: float

    @property
    def color(self) -> str:
        return COLORS.get(self.name.kind, self.lane)

    @property
    def grain(self) -> int | None:
        return self.name.number if self.name.kind in _OF_GRAINS else None

    @property
    def is_meeting(self) -> bool:
        """Whether members wait for each other in it; a receive is posted ahead, and what it waits is of no interest."""
        return self.name.kind in _MEETINGS

    @property
    def words(self) -> str:
        """What it does."""
        words, number = _WORDS.get(self.name.kind), self.name.number
        return self.action if words is None else words.format("" if number is None else number).replace("  ", " ")


def bars_of(timeline: Timeline) -> list[Bar]:
    """All actions of a step, member by member and lane by lane, in the order of time."""
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
        for bar in _side_by_side(lanes.get((member, lane), []))
    ]


def members_in_order(timeline: Timeline) -> list[str]:
    """Replica by replica and stage by stage, as their names say: r2s0 before r10s0."""
    return sorted(
        timeline.members, key=lambda name: [(part.isdigit(), part.zfill(12)) for part in _PARTS.findall(name)]
    )


_PARTS = re.compile(r"\d+|\D+")


def _side_by_side(bars: Sequence[Bar]) -> list[Bar]:
    """Each in the first track that is free."""
    free_s: list[float] = []
    result = []
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        track = next((number for number, until_s in enumerate(free_s) if until_s <= bar.start_s), len(free_s))
        free_s[track : track + 1] = [bar.end_s]
        result.append(replace(bar, track=track))
    return result
