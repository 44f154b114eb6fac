"""Actions: the things a member does in a step, their text form, and what each must wait for.

`2F5` is the forward of stage 2 on grain 5, `2B5` its backward; `2SEND_F5` passes that forward's output on to stage 3
and `3RECV_F5` takes it; `3SEND_B5` and `2RECV_B5` are the gradients on their way back. `2REDUCE` sums the stage's
gradients over the replicas, `2COMMIT` ends the step for the member.
"""

import re
from dataclasses import dataclass
from enum import Enum

from zooid.core.errors import ScheduleError


class Kind(Enum):
    """What an action does."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_FORWARD = "SEND_F"
    RECEIVE_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"
    RECEIVE_BACKWARD = "RECV_B"
    REDUCE = "REDUCE"
    COMMIT = "COMMIT"


class Lane(Enum):
    """What an action keeps busy. A member works through each lane in list order, all lanes at the same time."""

    COMPUTE = "compute"
    UPLINK = "uplink"
    DOWNLINK = "downlink"


_LANES = {
    Kind.FORWARD: Lane.COMPUTE,
    Kind.BACKWARD: Lane.COMPUTE,
    Kind.SEND_FORWARD: Lane.UPLINK,
    Kind.SEND_BACKWARD: Lane.UPLINK,
    Kind.RECEIVE_FORWARD: Lane.DOWNLINK,
    Kind.RECEIVE_BACKWARD: Lane.DOWNLINK,
    Kind.REDUCE: Lane.COMPUTE,
    Kind.COMMIT: Lane.COMPUTE,
}

_WHOLE_STEP = (Kind.REDUCE, Kind.COMMIT)
_TEXT = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|REDUCE|COMMIT|F|B)(\d*)")


@dataclass(frozen=True, slots=True, order=False)
class Action:
    """One thing a member does in a step; `grain` is None for what concerns the whole step."""

    stage: int
    kind: Kind
    grain: int | None = None

    def __post_init__(self) -> None:
        if (self.grain is None) != (self.kind in _WHOLE_STEP):
            raise ScheduleError(f"{self.kind.value} of stage {self.stage} cannot have grain {self.grain}")

    @property
    def lane(self) -> Lane:
        return _LANES[self.kind]

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{'' if self.grain is None else self.grain}"


def parse_action(text: str) -> Action:
    """Read the text form back.

    >>> parse_action("2RECV_F5")
    Action(stage=2, kind=<Kind.RECEIVE_FORWARD: 'RECV_F'>, grain=5)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ScheduleError(f"{text!r} is not an action; examples are 2F5, 2B5, 2SEND_F5, 3RECV_F5, 2REDUCE, 2COMMIT")
    return Action(int(match[1]), Kind(match[2]), int(match[3]) if match[3] else None)


def peer_action(action: Action) -> Action | None:
    """The send that a receive takes its data from, on the neighbouring stage of the same replica."""
    if action.kind is Kind.RECEIVE_FORWARD:
        return Action(action.stage - 1, Kind.SEND_FORWARD, action.grain)
    if action.kind is Kind.RECEIVE_BACKWARD:
        return Action(action.stage + 1, Kind.SEND_BACKWARD, action.grain)
    return None


def local_dependencies(action: Action, num_stages: int, grains: tuple[int, ...]) -> tuple[Action, ...]:
    """What the same member must have finished before; `grains` are those of its replica in this step."""
    stage, grain = action.stage, action.grain
    match action.kind:
        case Kind.FORWARD:
            return (Action(stage, Kind.RECEIVE_FORWARD, grain),) if stage > 0 else ()
        case Kind.BACKWARD:
            forward = Action(stage, Kind.FORWARD, grain)
            return (forward, Action(stage, Kind.RECEIVE_BACKWARD, grain)) if stage < num_stages - 1 else (forward,)
        case Kind.SEND_FORWARD:
            return (Action(stage, Kind.FORWARD, grain),)
        case Kind.SEND_BACKWARD:
            return (Action(stage, Kind.BACKWARD, grain),)
        case Kind.REDUCE:
            return tuple(Action(stage, Kind.BACKWARD, other) for other in grains)
        case Kind.COMMIT:
            return (Action(stage, Kind.REDUCE),)
        case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
            return ()
