"""Processes that a member leaves behind: daemons that it has started, in sessions of their own.

The program that attends the member adopts them. So they end with the member, and none of them stays a zombie. Each has
another session than the attending program, since the member has a session of its own. What the attending program has
started itself, such as a helper that fetches credentials, shares its session and is left alone.
"""

import ctypes
import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_KILL_LIMIT_S = 5.0
"""How long to wait for killed processes; only those of another user and those that wait for a broken disk stay."""
_POLL_S = 0.005


def adopt_orphans() -> None:
    """Let orphans among the descendants of this process become its children, instead of those of init."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(member: int) -> None:
    """Reap the adopted processes that have ended; the exit status of the member is left for whoever waits for it."""
    while (pid := _ended_child()) is not None and pid != member and _is_adopted(pid):
        os.waitpid(pid, 0)


def end_orphans() -> None:
    """Kill and reap all adopted processes, with all their descendants. The member must have been reaped before."""
    deadline_s = time.monotonic() + _KILL_LIMIT_S
    while _has_children() and (orphans := [pid for pid in _children() if _is_adopted(pid)]):
        if time.monotonic() > deadline_s:
            logger.warning("processes that the member has left behind do not end: %s", orphans)
            return
        for pid in orphans:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        for pid in orphans:
            os.waitpid(pid, os.WNOHANG)  # the children of each become those of this process


def _ended_child() -> int | None:
    """Return the process id of a child that has ended and was not reaped yet; None if there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """List the children of this process, zombies included."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, IndexError):
            if name.isdigit() and _parent(name) == os.getpid():
                found.append(int(name))
    return found


def _parent(name: str) -> int:
    """Return the parent of the process with this number; its name, which comes before, may contain anything."""
    return int(Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def _is_adopted(pid: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getsid(pid) != os.getsid(0)
    return False
