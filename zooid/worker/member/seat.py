"""The seat of a member in its roster, and sums over all members."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from zooid.core.runs.roster import Roster
from zooid.worker.peers import Groups
from zooid.worker.step.pending import begin_all_reduce


@dataclass
class SumClock:
    """The time of the last sum over all members."""

    last_s: float = 0.0


@dataclass(frozen=True)
class Seat:
    """The rank, stage and replica that a roster gives one member, and the member's process groups."""

    roster: Roster
    rank: int
    device: torch.device
    """Device of small sums over all members: NCCL needs them on a GPU."""
    groups: Groups = field(default_factory=Groups)
    confirm: Callable[[], None] = lambda: None
    """Returns when the roster is in the store, on the member that writes it. Raises if it has lost to another one."""
    sum_clock: SumClock = field(default_factory=SumClock)

    @property
    def name(self) -> str:
        return self.roster.seats[self.rank].name

    @property
    def replica(self) -> int | None:
        """The member's replica; None for a copy or a guest, which compute no grains."""
        return self.roster.replica_of(self.name)

    @property
    def stage(self) -> int:
        return self.roster.seats[self.rank].stage

    @property
    def is_guest(self) -> bool:
        return self.name not in self.roster.stages

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """The sums of these numbers over all members."""
        if self.groups.everyone is None:
            return list(numbers)
        start_s = time.perf_counter()
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        begin_all_reduce(total, self.groups.everyone).wait()
        sums: list[float] = total.tolist()
        self.sum_clock.last_s = time.perf_counter() - start_s
        return sums

    def barrier(self) -> None:
        """Wait for all members, with a sum, which every backend has."""
        self.add_up([0.0])
