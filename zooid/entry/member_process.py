"""The process of a member, as its parent sees it: a new program, or a fork that waits for its turn."""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zooid.core.runs.ticket import Ticket
from zooid.entry.gpu_claims import gpu_settings

_PIPE_BYTES = 1 << 20
"""Room for output that the parent has not read yet. The kernel's default is 64 KiB."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class MemberProcess:
    """A running member, which leads a session of its own."""

    pid: int
    output: int
    """File descriptor from which all that it prints can be read."""


class Starter(Protocol):
    """Starts the program of a member."""

    def start(self, ticket: Ticket, folder: str, enter: Sequence[str]) -> MemberProcess:
        """Start the member in this working directory; `enter` is a command that runs it inside its limits.

        Claims the GPU that the ticket asks for, and may wait until one is free.
        """

    def cancel(self) -> None:
        """Give up what was prepared for the member, which is not started."""


class NewProcess:
    """Starts members as new processes of this interpreter."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` has variables of the member beside those of this process."""
        self._environment = environment or {}

    def start(self, ticket: Ticket, folder: str, enter: Sequence[str]) -> MemberProcess:
        settings = {**self._environment, **gpu_settings(ticket.gpu)}
        read_end, write_end = _pipe()
        command = [sys.executable, "-m", f"zooid.{ticket.program}", ticket.spec_url, ticket.spec_digest]
        parent = os.getpid()
        process = subprocess.Popen(
            [*enter, *ticket.prefix, *command],  # limits come first: a network namespace may hide the cgroups
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            cwd=folder,
            env={**os.environ, **settings},
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )
        os.close(write_end)
        process.returncode = 0  # its parent waits for it by its process id, and not through this object
        return MemberProcess(process.pid, read_end)

    def cancel(self) -> None:
        pass


class WaitingFork:
    """A fork of this process, made before it opens a store or starts a thread, which waits until it may begin."""

    def __init__(self, become: Callable[[str], int]) -> None:
        """`become` runs the member in the given working directory, and returns its exit status."""
        self._output, write_end = _pipe()
        turn, self._turn = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid:
            os.close(turn)
            os.close(write_end)
            return
        os.setsid()
        _die_with(parent)
        for descriptor in (self._output, self._turn):
            os.close(descriptor)
        with os.fdopen(turn) as words:
            text = words.read()
        if not text:  # it was cancelled
            os._exit(0)
        order = json.loads(text)
        os.environ.update(order["environment"])
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        os.close(write_end)
        from zooid.store.member_program import end_process

        status = 1
        try:
            status = become(order["folder"])
        except BaseException:  # noqa: BLE001  # what has forked this process must not go on in it
            traceback.print_exc()
        end_process(status)

    def start(self, ticket: Ticket, folder: str, enter: Sequence[str]) -> MemberProcess:
        assert not enter, "a fork shares memory with others, which would not count towards its limit"
        order = {"folder": folder, "environment": gpu_settings(ticket.gpu)}
        os.write(self._turn, json.dumps(order).encode())
        os.close(self._turn)
        return MemberProcess(self._pid, self._output)

    def cancel(self) -> None:
        os.close(self._turn)
        os.waitpid(self._pid, 0)


def _pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read_end, write_end


def _die_with(parent: int) -> None:
    """Have this process killed when its parent dies, and let a notice wait until the member's program expects it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)
