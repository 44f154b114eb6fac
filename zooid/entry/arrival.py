"""The arrival of a member on a machine to which zooid has just been brought."""

import logging
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from zooid.core.environment import member_settings
from zooid.core.runs.ticket import Ticket, Versions
from zooid.entry import machine_folder
from zooid.entry.attendant import EXIT_NOT_STARTED, attend
from zooid.entry.forked_program import run_program
from zooid.entry.member_process import NewProcess, WaitingFork


def arrive(ticket: dict[str, Any], *, forks: bool = False) -> int:
    """Compare versions, then attend the member of this ticket, and return the exit status of this program.

    With `forks`, the member is a fork of this process, which has no threads and has imported torch.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    decoded = msgspec.convert(ticket, Ticket)
    if decoded.versions is not None and decoded.versions != (own := own_versions()):
        sys.stderr.write(
            f"the coordinator has {decoded.versions}, but {os.uname().nodename} has {own}; install the "
            "same versions on both\n"
        )
        return EXIT_NOT_STARTED
    temporary = Path(machine_folder.run_folder(decoded.run), "tmp")  # it goes with the folder of the run
    temporary.mkdir(exist_ok=True)
    settings = {**member_settings(decoded.num_threads), "TMPDIR": str(temporary)}
    if forks and not decoded.prefix:
        return attend(decoded, WaitingFork(lambda folder: run_program(decoded, folder, settings)))
    return attend(decoded, NewProcess(settings))


def own_versions() -> Versions:
    """Return the versions of this process, without importing torch."""
    try:
        torch = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        torch = "none"
    return Versions(f"{sys.version_info.major}.{sys.version_info.minor}", torch)
