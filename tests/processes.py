"""What tests ask about processes, and how they wait for something to come about."""

import os
import signal
from pathlib import Path


def children(pid: int | None = None) -> list[int]:
    """Of the main thread of a process; of this one, if none is given."""
    parent = pid or os.getpid()
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def heed_signals() -> None:
    """For a process that a test will signal: whoever started the tests in the background may have had some ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def is_gone(pid: int) -> bool:
    """Ended, whether or not somebody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def parent_of(pid: int) -> int:
    """The process id of the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
