"""A member that another process has started: it can be watched and ended, but its exit status is unknown."""

import math
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from zooid.core.runs.liveness import ProcessMark, is_alive, mark_of

_LOOK_S = 0.005


class AdoptedProcess:
    """The part of subprocess.Popen that the platform uses, for an adopted member."""

    def __init__(self, mark: ProcessMark) -> None:
        self._mark = mark

    @property
    def is_alive(self) -> bool:
        return is_alive(self._mark) is True

    @property
    def pid(self) -> int | None:
        """The process id; None after its end, since another process may have the number by then."""
        return self._mark.pid if self.is_alive else None

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float = math.inf) -> None:
        deadline_s = time.monotonic() + timeout
        while self.is_alive:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("an adopted member", timeout)
            time.sleep(_LOOK_S)


def location_of(pid: int, log: Path) -> dict[str, str]:
    """The location of a process, by which other processes of this machine find it."""
    mark = mark_of(pid)
    return {"machine": mark.machine, "pid": str(mark.pid), "started": mark.started, "log": str(log)}


def process_at(location: Mapping[str, str]) -> tuple[AdoptedProcess, Path] | None:
    """The process and its log; None if it is on another machine, or the location is invalid."""
    pid = location.get("pid", "")
    if not (pid.isascii() and pid.isdigit() and len(pid) <= 9):
        return None
    mark = ProcessMark(machine=location.get("machine", ""), pid=int(pid), started=location.get("started", ""))
    if is_alive(mark) is None:
        return None
    return AdoptedProcess(mark), Path(location.get("log", ""))
