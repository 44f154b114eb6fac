"""The local platform, remembering what it started."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from lab.sessions import begun_session
from lab.waiting import wait_until
from zooid.platforms import Exit, Launch
from zooid.platforms.local import LocalPlatform

_GONE = Exit(None)


class RecordingPlatform(LocalPlatform):
    """Members as processes, with their names and process ids."""

    def __init__(self, prefix: Callable[[Launch], Sequence[str]] | None = None) -> None:
        super().__init__(prefix)
        self.launched: list[str] = []
        """Names of members, in order; a test may forget those of others."""
        self.pids: dict[str, int] = {}
        """By name, of the members that were launched last."""

    def forget(self) -> None:
        self.launched.clear()
        self.pids.clear()

    def create(self, launches: Sequence[Launch]) -> None:
        super().create(launches)
        for launch in launches:
            self.launched.append(launch.member)
            wait_until(partial(self._has_begun, launch))

    def _has_begun(self, launch: Launch) -> bool:
        """Note the process of a member, once it has one; whether it has, or never will."""
        ticket = launch.ticket
        pid = begun_session(ticket.run, ticket.title)
        if pid is not None:
            self.pids[launch.member] = pid
        return pid is not None or self.members(ticket.run).get(ticket.title, _GONE) is not None


def still_running(pids: Sequence[int]) -> list[int]:
    """Those whose session, which a member leads, still has a process."""
    return [pid for pid in pids if _has_process(pid)]


def _has_process(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True
