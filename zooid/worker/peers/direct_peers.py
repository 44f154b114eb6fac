"""Members that connect to each other: groups are channels on connections that outlive rosters."""

from collections.abc import Callable, Collection, Sequence

from torch import distributed as dist

from zooid.comm import MemberLinks, ProcessGroup
from zooid.core.abort import Abort
from zooid.core.runs.roster import Roster
from zooid.worker.peers.roster_groups import Groups, own_groups

_MAX_GROUPS = 2**16
"""Largest number of groups under one roster; each group has its own channel."""


class DirectPeers:
    """Peers over TCP."""

    def __init__(self, links: MemberLinks, *, timeout_s: float, abort: Abort, on_left: Callable[[], None]) -> None:
        """`on_left` is called after a clean close."""
        self._links = links
        self._on_left = on_left
        self._timeout_s = timeout_s
        self._abort = abort
        self._groups: list[ProcessGroup] = []

    @property
    def lost(self) -> Collection[str]:
        return self._links.lost.keys()

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]]) -> Groups:
        first_channel = 1 + roster.change * _MAX_GROUPS

        def make(number: int, names: Sequence[str]) -> dist.ProcessGroup:
            assert number < _MAX_GROUPS, "rosters are smaller"
            group = self._links.group(first_channel + number, names, timeout_s=self._timeout_s, abort=self._abort)
            self._groups.append(group)
            return group

        return own_groups(roster, self._links.name, ties, make)

    def announce_survey(self) -> None:
        """Do nothing: the others notice that connections break."""

    def end(self, *, is_clean: bool) -> None:
        for group in self._groups:
            group.shutdown()
        self._groups.clear()

    def close(self, *, is_clean: bool) -> None:
        if not is_clean:
            self._links.cut()
            return
        self._links.close()
        self._on_left()
