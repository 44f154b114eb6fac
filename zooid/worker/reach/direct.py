"""Members that are connected with each other: groups are channels on connections that outlive rosters."""

from collections.abc import Callable, Collection, Sequence

from torch import distributed as dist

from zooid.comm import MemberLinks, ProcessGroup
from zooid.core.abort import Abort
from zooid.core.runs.roster import Roster
from zooid.worker.reach.roster_groups import Groups, own_groups

_MAX_GROUPS = 2**16
"""The most groups that one roster may have; each has its own channel."""


class DirectReach:
    """Over TCP."""

    def __init__(self, links: MemberLinks, *, timeout_s: float, abort: Abort, on_left: Callable[[], None]) -> None:
        """`on_left` is called when the member has left in peace."""
        self._links = links
        self._on_left = on_left
        self._timeout_s = timeout_s
        self._abort = abort
        self._groups: list[ProcessGroup] = []

    @property
    def lost(self) -> Collection[str]:
        return self._links.lost.keys()

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]]) -> Groups:
        first = 1 + roster.change * _MAX_GROUPS

        def make(number: int, names: Sequence[str]) -> dist.ProcessGroup:
            assert number < _MAX_GROUPS, "rosters are smaller"
            group = self._links.group(first + number, names, timeout_s=self._timeout_s, abort=self._abort)
            self._groups.append(group)
            return group

        return own_groups(roster, self._links.name, ties, make)

    def call(self) -> None:
        """Connections break by themselves."""

    def end(self, *, in_peace: bool) -> None:
        for group in self._groups:
            group.shutdown()
        self._groups.clear()

    def close(self, *, in_peace: bool) -> None:
        if not in_peace:
            self._links.cut()
            return
        self._links.close()
        self._on_left()
