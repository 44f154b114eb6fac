"""Actions: the operations of a member in a step, their text form, and their dependencies.

`2F5` is the forward of stage 2 on grain 5, and `2B5` its backward. `2SEND_F5` sends the output of that forward to stage
3, and `3RECV_F5` receives it; `3SEND_B5` and `2RECV_B5` do the same with gradients. `2REDUCE1` sums the second bucket
of the stage's gradients over the replicas. `2SHARE0` sums gradients of tied parameters over the stages that have them.
`2COMMIT` ends the step for the member.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from zooid.core.errors import ScheduleError


class Kind(Enum):
    """The kind of an action."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_FORWARD = "SEND_F"
    RECEIVE_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"
    RECEIVE_BACKWARD = "RECV_B"
    REDUCE = "REDUCE"
    SHARE = "SHARE"
    COMMIT = "COMMIT"

    __hash__ = object.__hash__  # Enum's own hash is slow, and actions are looked up millions of times


MESSAGES = (Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD, Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD)
"""The kinds of actions that send or receive values between neighbouring stages."""


class Lane(Enum):
    """The resource that an action occupies.

    A member computes in list order; transfers begin as soon as their dependencies are done.
    """

    COMPUTE = "compute"
    UPLINK = "uplink"
    DOWNLINK = "downlink"
    REDUCE = "reduce"


_LANES = {
    Kind.FORWARD: Lane.COMPUTE,
    Kind.BACKWARD: Lane.COMPUTE,
    Kind.SEND_FORWARD: Lane.UPLINK,
    Kind.SEND_BACKWARD: Lane.UPLINK,
    Kind.RECEIVE_FORWARD: Lane.DOWNLINK,
    Kind.RECEIVE_BACKWARD: Lane.DOWNLINK,
    Kind.REDUCE: Lane.REDUCE,
    Kind.SHARE: Lane.REDUCE,
    Kind.COMMIT: Lane.COMPUTE,
}

RECEIVES_AHEAD = 2
"""Number of messages of one direction that a member receives before it needs them."""
SENDS_BEHIND = 4
"""Number of messages of one direction that may be in flight while a member continues to compute."""


@dataclass(frozen=True, slots=True, order=False)
class Action:
    """One operation of a member in a step."""

    stage: int
    kind: Kind
    number: int | None = None
    """The number of the grain, of the bucket (REDUCE) or of the tie (SHARE); None for a COMMIT."""

    def __post_init__(self) -> None:
        if (self.number is None) != (self.kind is Kind.COMMIT):
            raise ScheduleError(f"{self.kind.value} of stage {self.stage} cannot have the number {self.number}")

    @property
    def lane(self) -> Lane:
        return _LANES[self.kind]

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{'' if self.number is None else self.number}"


def peer_action(action: Action) -> Action | None:
    """The send that a receive waits for, on the neighbouring stage of the same replica."""
    if action.kind is Kind.RECEIVE_FORWARD:
        return Action(action.stage - 1, Kind.SEND_FORWARD, action.number)
    if action.kind is Kind.RECEIVE_BACKWARD:
        return Action(action.stage + 1, Kind.SEND_BACKWARD, action.number)
    return None


def taking_action(action: Action) -> Action | None:
    """The receive of a message that this action sends, on the neighbouring stage of the same replica."""
    if action.kind is Kind.SEND_FORWARD:
        return Action(action.stage + 1, Kind.RECEIVE_FORWARD, action.number)
    if action.kind is Kind.SEND_BACKWARD:
        return Action(action.stage - 1, Kind.RECEIVE_BACKWARD, action.number)
    return None


Needs = dict[Action, tuple[Action, ...]]

_DIRECTIONS = (
    (Kind.RECEIVE_FORWARD, Kind.FORWARD, Kind.SEND_FORWARD),
    (Kind.RECEIVE_BACKWARD, Kind.BACKWARD, Kind.SEND_BACKWARD),
)


def needs_of(actions: Sequence[Action]) -> Needs:
    """The actions that a member must finish before each action of its list.

    Some dependencies are about data: a forward needs its input. Others are about memory: a receive waits for a buffer
    that a computation frees, and a computation for a buffer that a send frees. So a member never holds more messages
    than RECEIVES_AHEAD and SENDS_BEHIND allow, however far its neighbours are ahead.
    """
    needs: dict[Action, list[Action]] = {action: [] for action in actions}
    of_kind: dict[Kind, list[Action]] = {kind: [] for kind in Kind}
    for action in actions:
        of_kind[action.kind].append(action)
    for receive, compute, send in _DIRECTIONS:
        received, computed, sent = of_kind[receive], of_kind[compute], of_kind[send]
        by_number = {action.number: action for action in computed}
        for action in (*received, *sent):
            partner = by_number.get(action.number)
            if partner is not None:
                first, second = (action, partner) if action.kind is receive else (partner, action)
                needs[second].append(first)
        for before, after in zip(received, received[RECEIVES_AHEAD:], strict=False):
            if before.number in by_number:
                needs[after].append(by_number[before.number])
        for before, after in zip(sent, computed[SENDS_BEHIND:], strict=False):
            needs[after].append(before)
    forwards = {action.number: action for action in of_kind[Kind.FORWARD]}
    backwards, reduces, shares = of_kind[Kind.BACKWARD], of_kind[Kind.REDUCE], of_kind[Kind.SHARE]
    for action in backwards:
        needs[action] += [forwards[action.number]] if action.number in forwards else []
    for action in reduces:
        needs[action] += [*backwards, *of_kind[Kind.SEND_BACKWARD]]
    for action in shares:
        needs[action] += reduces or backwards
    for action in of_kind[Kind.COMMIT]:
        needs[action] += shares or reduces or backwards or list(forwards.values())
    return {action: tuple(before) for action, before in needs.items()}
