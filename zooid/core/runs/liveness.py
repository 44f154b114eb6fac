"""Which process this is, in words that another process of the same machine can check."""

import os
from pathlib import Path

from zooid.core.records import Record

_PROC = Path("/proc")
_STATE, _START = 0, 19
"""Places in /proc/PID/stat, counted behind the name, which may hold anything."""
_ENDED = ("Z", "X")
_STOPPED = ("T", "t")


class ProcessMark(Record, frozen=True, kw_only=True):
    """One process of one machine since it was booted."""

    machine: str
    """Boot and process namespace, within which process numbers are unique; empty where the system does not say."""
    pid: int
    started: str
    """When the process was started, in the kernel's own ticks: numbers of ended processes are used again."""


def own_mark() -> ProcessMark:
    """The mark of the calling process."""
    return mark_of(os.getpid())


def mark_of(pid: int) -> ProcessMark:
    """The mark of a process of this machine."""
    return ProcessMark(machine=_machine(), pid=pid, started=_started(pid) or "")


def is_alive(mark: ProcessMark) -> bool | None:
    """Whether that process still runs; None where only another machine, or nobody, can tell."""
    if not mark.machine or mark.machine != _machine():
        return None
    return _started(mark.pid) == mark.started


def is_stopped(mark: ProcessMark) -> bool:
    """Whether that process runs on this machine, but does nothing until it is sent SIGCONT."""
    return is_alive(mark) is True and _fields(mark.pid)[_STATE] in _STOPPED


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process was started; None where it has ended, whether or not its parent has asked how."""
    fields = _fields(pid)
    return None if fields[_STATE] in _ENDED else fields[_START]


def _fields(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [_ENDED[0]]
