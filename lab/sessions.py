"""Process ids of members on this machine."""

import json
import time
from contextlib import suppress
from pathlib import Path

from zooid.entry import machine_folder
from zooid.platforms import Launch

_POLL_S = 0.005


def session_of(launch: Launch) -> int:
    """Wait until a member has begun, and return the process id of its program, which leads its session."""
    while (pid := begun_session(launch.ticket.run, launch.ticket.title)) is None:
        time.sleep(_POLL_S)
    return pid


def begun_session(run: str, title: str) -> int | None:
    """Return the process id of a member's program; None if it has not begun."""
    with suppress(FileNotFoundError):
        lines = (Path(machine_folder.run_folder(run)) / "members" / title).read_text().splitlines()
        return json.loads(lines[1])["session"] if len(lines) > 1 else None
    return None
