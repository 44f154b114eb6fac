"""Guests of a roster: what its members send them, and what a guest receives."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from torch import distributed as dist

from zooid.core.runs.roster import Roster
from zooid.layers import LayeredModel
from zooid.worker.member.seat import Seat
from zooid.worker.state.stage_state import Loaded, Received, StageState
from zooid.worker.state.state_handover import receive_held, receive_state, send_held, send_state
from zooid.worker.step.verdict import StageNumbers

Source = TypeVar("Source")
Part = TypeVar("Part")
Span = tuple[int, int]
"""The first layer, and the layer after the last one."""


@dataclass(frozen=True)
class Spans:
    """The layers of every stage, before and after a planned change."""

    members: tuple[Span, ...]
    guests: tuple[Span, ...]

    def overlap(self, stage: int, guest_stage: int) -> Span:
        """The layers that a member's stage and a guest's stage share; empty if the end is not above the first."""
        (first, end), (guest_first, guest_end) = self.members[stage], self.guests[guest_stage]
        return max(first, guest_first), min(end, guest_end)

    def have_common(self, stage: int, guest_stage: int) -> bool:
        first, end = self.overlap(stage, guest_stage)
        return first < end


@dataclass
class Hospitality:
    """One member's exchange with the guests of its roster, or that of a guest with its sources."""

    seat: Seat
    layered: LayeredModel
    spans: Spans
    state: StageState

    def welcome(self) -> None:
        """Begin to send the state of this member's layers to its guests."""
        progress = self.state.progress
        so_far = (progress.step.num_applied, progress.scale, self.state.history.ledger)
        for names, group in self._shared():
            send_state(self.state.stage, self.state.training, names, so_far, group)

    def give(self) -> None:
        """Begin to send the reduced gradients of a step to the guests."""
        if self.seat.roster.guests and not self.seat.is_guest:
            for names, group in self._shared():
                send_held(self.state.training, names, group)

    def take(self) -> StageNumbers:
        """Receive and hold the reduced gradients of a step, as a guest."""
        shared, training = self._shared(), self.state.training
        received = _from_all(shared, lambda pair: receive_held(training, *pair))
        for (names, _), parts in zip(shared, received, strict=True):
            training.take_held_of(names, parts)
        return StageNumbers(0.0, 0.0, 0.0, 0.0)

    def _shared(self) -> list[tuple[frozenset[str], dist.ProcessGroup]]:
        stages = stages_of(self.seat.roster)
        return [
            (shared_names(self.layered, self.spans, stages[self.seat.name], stages[other], self.seat.is_guest), group)
            for other, group in self.seat.groups.guests.items()
        ]


def stages_of(roster: Roster) -> Mapping[str, int]:
    """The stage of every member in the present plan, and of every guest in its own."""
    return roster.stages | {guest.name: guest.stage for guest in roster.guests}


def shared_names(
    layered: LayeredModel, spans: Spans, own_stage: int, other_stage: int, is_guest: bool
) -> frozenset[str]:
    """The names of parameters and buffers that a member sends to a guest."""
    pair = (other_stage, own_stage) if is_guest else (own_stage, other_stage)
    return frozenset(layered.state_of(*spans.overlap(*pair)))


def receive_as_guest(seat: Seat, loaded: Loaded) -> Received:
    """Receive the state of all layers of a guest from its sources."""
    return _from_all(list(seat.groups.guests.values()), lambda group: receive_state(loaded[0], group))


def _from_all(sources: Sequence[Source], receive: Callable[[Source], Part]) -> list[Part]:
    """What each source sends, received from all of them at once."""
    with ThreadPoolExecutor(len(sources), thread_name_prefix="zooid-guest") as pool:
        return list(pool.map(receive, sources))
