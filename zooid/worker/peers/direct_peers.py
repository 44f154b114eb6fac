"""Members that connect to each other: groups are channels on connections that outlive rosters."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from torch import distributed as dist

from zooid.comm import MemberLinks, ObjectRendezvous, ProcessGroup
from zooid.core.abort import Abort
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.worker.peers.roster_groups import Groups, Overlaps, own_groups

_MAX_GROUPS = 2**16
"""Largest number of groups under one roster; each group has its own channel."""


@dataclass(frozen=True)
class DirectPeers:
    """Peers over TCP."""

    links: MemberLinks
    timeout_s: float
    abort: Abort
    rendezvous: Callable[[PlannedChange, Abort], ObjectRendezvous]
    """Returns the rendezvous of a planned change, whose waits this flag ends."""
    on_left: Callable[[], None]
    """Called after a clean close."""
    _groups: list[ProcessGroup] = field(default_factory=list)

    @property
    def lost(self) -> Collection[str]:
        return self.links.lost.keys()

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]], overlaps: Overlaps) -> Groups:
        # a planned roster may lose against another one of the same number
        first_channel = 1 + (2 * roster.change + roster.is_planned) * _MAX_GROUPS

        def make(number: int, names: Sequence[str]) -> dist.ProcessGroup:
            assert number < _MAX_GROUPS, "rosters are smaller"
            group = self.links.group(first_channel + number, names, timeout_s=self.timeout_s, abort=self.abort)
            self._groups.append(group)
            return group

        return own_groups(roster, self.links.name, ties, overlaps, make)

    def connect(self, change: PlannedChange, roster: Roster, abort: Abort) -> None:
        if joiners := change.joiners(roster):
            names = [seat.name for seat in (*roster.seats, *joiners)]
            rendezvous, num_connected = self.rendezvous(change, abort), len(roster.seats)
            self.links.join(rendezvous, names, num_connected, timeout_s=self.timeout_s, abort=abort)

    def announce_survey(self) -> None:
        """Do nothing: the others notice that connections break."""

    def end(self, *, is_clean: bool) -> None:
        for group in self._groups:
            group.shutdown()
        self._groups.clear()

    def close(self, *, is_clean: bool) -> None:
        if not is_clean:
            self.links.cut()
            return
        self.links.close()
        self.on_left()
