"""Where a member sits in its roster, and what it exchanges with the others from there."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from zooid.core.runs.roster import Roster
from zooid.schedule.actions import Kind
from zooid.worker.reach import Groups, Reach
from zooid.worker.step.pending import Underway, adding_up, receiving, sending


@dataclass(frozen=True)
class Seat:
    """One member's place."""

    roster: Roster
    rank: int
    device: torch.device
    """Where small sums over all members are made: NCCL wants them on a GPU."""
    groups: Groups = field(default_factory=Groups)

    @property
    def name(self) -> str:
        return self.roster.seats[self.rank].name

    @property
    def replica(self) -> int | None:
        """None for a copy, which computes no grains."""
        return self.roster.replica_of(self.name)

    @property
    def stage(self) -> int:
        return self.roster.seats[self.rank].stage

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """The sums of these numbers over all members."""
        if self.groups.everyone is None:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        adding_up(total, self.groups.everyone).wait()
        return total.tolist()

    def meet(self) -> None:
        """Wait for all members; a barrier that every backend has."""
        self.add_up([0.0])


class Messenger:
    """Messages to and from the neighbouring stages. The grain is the tag, so that none waits for one before it."""

    def __init__(self, seat: Seat) -> None:
        self._neighbours = seat.groups.neighbours
        self._last_sent: dict[Kind, Underway] = {}

    def send(self, kind: Kind, grain: int, message: torch.Tensor) -> Underway:
        group, rank = self._neighbours[kind]
        sent = Underway([sending(message, rank, grain, group)], after=self._last_sent.get(kind))
        self._last_sent[kind] = sent
        return sent

    def receive(self, kind: Kind, grain: int, message: torch.Tensor) -> Underway:
        group, rank = self._neighbours[kind]
        return Underway([receiving(message, rank, grain, group)])


def take_seat(reach: Reach, roster: Roster, name: str, ties: Sequence[tuple[int, ...]], device: torch.device) -> Seat:
    """The seat that the roster gives this member. `ties` are stages that share parameters."""
    return Seat(roster, roster.rank_of(name), device, reach.groups(roster, ties))
