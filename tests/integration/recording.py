"""The local platform, remembering what it started."""

import os
from collections.abc import Callable, Sequence

from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform
from zooid.platforms.local.processes import LocalHandle


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

    def launch(self, launch: Launch) -> LocalHandle:
        handle = super().launch(launch)
        pid = handle.process.pid
        assert pid is not None
        self.launched.append(launch.member)
        self.pids[launch.member] = pid
        return handle


def still_running(pids: Sequence[int]) -> list[int]:
    """Those whose session, which a member leads, still has a process."""
    return [pid for pid in pids if _has_process(pid)]


def _has_process(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True
