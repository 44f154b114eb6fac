"""Identities of processes, with which another process of the same machine can check whether they are alive."""

import os
from pathlib import Path

from zooid.core.records import Record

_PROC = Path("/proc")
_STATE, _START = 0, 19
"""Indexes of fields in /proc/PID/stat, counted after the name, which may contain anything."""
_ENDED = ("Z", "X")
_STOPPED = ("T", "t")


class ProcessMark(Record, frozen=True, kw_only=True):
    """The identity of one process on one machine since it was booted."""

    machine: str
    """Boot and process namespace, within which process numbers are unique; empty if the system does not say."""
    pid: int
    started: str
    """Start time of the process in kernel ticks, because the kernel reuses process numbers."""


def own_mark() -> ProcessMark:
    """Return the identity of the calling process."""
    return mark_of(os.getpid())


def mark_of(pid: int) -> ProcessMark:
    """Return the identity of a process on this machine."""
    return ProcessMark(machine=_machine(), pid=pid, started=_started(pid) or "")


def is_alive(mark: ProcessMark) -> bool | None:
    """Whether the process still runs; None if it is not of this machine, or the system does not say."""
    if not mark.machine or mark.machine != _machine():
        return None
    return _started(mark.pid) == mark.started


def is_stopped(mark: ProcessMark) -> bool:
    """Whether the process is of this machine and stopped until it gets SIGCONT."""
    return is_alive(mark) is True and _fields(mark.pid)[_STATE] in _STOPPED


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return the start time of a process; None if it has ended, even if it is still a zombie."""
    fields = _fields(pid)
    return None if fields[_STATE] in _ENDED else fields[_START]


def _fields(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [_ENDED[0]]
