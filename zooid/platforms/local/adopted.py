"""A member that another process has started: it can be watched and ended, but nobody here is told how it ended."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from zooid.core.runs.liveness import ProcessMark, is_alive, mark_of

_LOOK_S = 0.005


class AdoptedProcess:
    """As much of subprocess.Popen as the platform uses."""

    def __init__(self, mark: ProcessMark) -> None:
        self._mark = mark

    @property
    def is_alive(self) -> bool:
        return is_alive(self._mark) is True

    @property
    def pid(self) -> int | None:
        """None where it has ended: its number may be that of another process by now."""
        return self._mark.pid if self.is_alive else None

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float | None = None) -> None:
        """Returns when it has ended."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self.is_alive:
            if deadline_s is not None and timeout is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("an adopted member", timeout)
            time.sleep(_LOOK_S)


def place_of(pid: int, log: Path) -> dict[str, str]:
    """Where a process of this machine is found by others."""
    mark = mark_of(pid)
    return {"machine": mark.machine, "pid": str(mark.pid), "started": mark.started, "log": str(log)}


def process_at(place: Mapping[str, str]) -> tuple[AdoptedProcess, Path] | None:
    """The process and its log; None where it belongs to another machine, or where the place says nothing of use."""
    pid = place.get("pid", "")
    if not (pid.isascii() and pid.isdigit() and len(pid) <= 9):
        return None
    mark = ProcessMark(machine=place.get("machine", ""), pid=int(pid), started=place.get("started", ""))
    if is_alive(mark) is None:
        return None
    return AdoptedProcess(mark), Path(place.get("log", ""))
