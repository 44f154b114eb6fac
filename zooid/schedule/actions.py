"""Actions: the things a member does in a step, their text form, and what each must wait for.

`2F5` is the forward of stage 2 on grain 5, `2B5` its backward; `2SEND_F5` passes that forward's output on to stage 3
and `3RECV_F5` takes it; `3SEND_B5` and `2RECV_B5` are the gradients on their way back. `2REDUCE1` sums the stage's
second bucket of gradients over the replicas, `2SHARE0` what it shares with other stages over those; `2COMMIT` ends the
step for the member.
"""

from collections.abc import Sequence
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
    SHARE = "SHARE"
    COMMIT = "COMMIT"

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python: actions are looked up millions of times


MESSAGES = (Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD, Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD)
"""Kinds of actions that pass values between neighbouring stages."""


class Lane(Enum):
    """What an action keeps busy. A member computes in list order; the rest begins as soon as what it needs is there."""

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
"""Messages of one direction that a member takes in before it needs them."""
SENDS_BEHIND = 4
"""Messages of one direction that a member may still be sending while it computes on."""


@dataclass(frozen=True, slots=True, order=False)
class Action:
    """One thing a member does in a step."""

    stage: int
    kind: Kind
    number: int | None = None
    """Of the grain, of the bucket for a REDUCE, of the tie for a SHARE; None for a COMMIT."""

    def __post_init__(self) -> None:
        if (self.number is None) != (self.kind is Kind.COMMIT):
            raise ScheduleError(f"{self.kind.value} of stage {self.stage} cannot have the number {self.number}")

    @property
    def lane(self) -> Lane:
        return _LANES[self.kind]

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{'' if self.number is None else self.number}"


def peer_action(action: Action) -> Action | None:
    """The send that a receive takes its data from, on the neighbouring stage of the same replica."""
    if action.kind is Kind.RECEIVE_FORWARD:
        return Action(action.stage - 1, Kind.SEND_FORWARD, action.number)
    if action.kind is Kind.RECEIVE_BACKWARD:
        return Action(action.stage + 1, Kind.SEND_BACKWARD, action.number)
    return None


def taking_action(action: Action) -> Action | None:
    """The receive that takes what a send brings, on the neighbouring stage of the same replica."""
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
    """For each action of one member's list, what the same member must have finished before.

    Data are one reason: a forward needs what it computes on. Room is the other: a receive needs the buffer that a
    computation gives back, and a computation the one that a send does, so that no member holds more messages than
    RECEIVES_AHEAD and SENDS_BEHIND allow, however far its neighbours are ahead.
    """
    needs: dict[Action, list[Action]] = {action: [] for action in actions}
    for receive, compute, send in _DIRECTIONS:
        computed = [action for action in actions if action.kind is compute]
        received = [action for action in actions if action.kind is receive]
        sent = [action for action in actions if action.kind is send]
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
    forwards = {action.number: action for action in actions if action.kind is Kind.FORWARD}
    backwards = [action for action in actions if action.kind is Kind.BACKWARD]
    reduces = [action for action in actions if action.kind is Kind.REDUCE]
    shares = [action for action in actions if action.kind is Kind.SHARE]
    for action in backwards:
        needs[action] += [forwards[action.number]] if action.number in forwards else []
    sent = [action for action in actions if action.kind is Kind.SEND_BACKWARD]
    for action in reduces:
        needs[action] += [*backwards, *sent]
    for action in shares:
        needs[action] += reduces or backwards
    for action in actions:
        if action.kind is Kind.COMMIT:
            needs[action] += shares or reduces or backwards or list(forwards.values())
    return {action: tuple(before) for action, before in needs.items()}
