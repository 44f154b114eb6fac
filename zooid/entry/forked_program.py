"""The program of a member in a fork of a process that has imported torch: it runs as in a new process."""

import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Mapping

from zooid.core.runs.ticket import Ticket


def run_program(ticket: Ticket, folder: str, settings: Mapping[str, str]) -> int:
    """Run the program of a member in this process and working directory, and return its exit status.

    `settings` has variables of the member beside those of this process.
    """
    os.chdir(folder)
    os.environ.update(settings)
    tempfile.tempdir = None  # it depends on the environment
    logging.root.handlers.clear()  # the program has its own
    sys.path.insert(0, folder)
    _reseed()
    module = importlib.import_module(f"zooid.{ticket.program}.__main__")
    sys.modules["__main__"] = module
    sys.argv = [str(module.__file__), ticket.spec_url, ticket.spec_digest]
    status: int = module.main()
    return status


def _reseed() -> None:
    """Reseed generators, so that siblings draw different numbers; Python's own does so by itself."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
