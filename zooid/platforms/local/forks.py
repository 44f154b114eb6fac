"""Members forked from a zygote, a process that has already imported torch, so that they start in milliseconds.

A zygote forks the program that attends a member, and that forks the member. All platforms of a process share its
zygotes. An idle zygote ends after a while, and all end with the process.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from zooid.core.environment import settings_at_start
from zooid.core.interrupts import uninterrupted
from zooid.core.runs.liveness import ProcessMark, is_alive, mark_of
from zooid.core.runs.ticket import Ticket
from zooid.platforms.local.fork_messages import Birth, Lines, News, encode_line

_PROGRAM = "zooid.platforms.local.zygote"
_PADDING = "-" * 4096
"""An argument that reserves room, in which a forked member shows its own command line."""
_CHUNK_BYTES = 1 << 16
IDLE_S = 60.0
"""Seconds without a member after which a zygote ends, since it occupies about 300 MB."""

_zygotes: dict[tuple[str, ...], "Zygote"] = {}
"""Live zygotes of this process, by the settings of their members."""
_starting = threading.Lock()


def fork_member(ticket: Ticket, environment: Mapping[str, str], log: Path) -> "ForkedProcess":
    """Fork a member from a zygote, as soon as that has imported torch."""
    while True:
        zygote = ready_zygote(environment)
        with contextlib.suppress(ConnectionError):  # the zygote is ending because it was idle: ask another one
            return zygote.fork(ticket, environment, log)


def ready_zygote(environment: Mapping[str, str]) -> "Zygote":
    """A live zygote with the settings of this environment."""
    key = settings_at_start(environment)
    with _starting:
        zygote = _zygotes.get(key)
        if zygote is None or not zygote.is_alive:
            if not _zygotes:
                atexit.register(close_zygotes)
            zygote = _zygotes[key] = Zygote(environment)
    return zygote


def close_zygotes() -> None:
    """End all zygotes of this process; running members continue."""
    while _zygotes:
        _zygotes.popitem()[1].close()


class ZygoteProcess(Protocol):
    """The part of subprocess.Popen that is needed for a zygote."""

    returncode: int | None

    def kill(self) -> None: ...

    def wait(self) -> int: ...


def start_zygote(end: socket.socket, environment: Mapping[str, str], words: int) -> ZygoteProcess:
    """Start an interpreter that forks members on request; `words` is the file descriptor of its output."""
    return subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(end.fileno()), str(IDLE_S), _PADDING],
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=[end.fileno()],
        start_new_session=True,
    )


class Zygote:
    """A zygote and its members."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._end, its_end = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the zygote lives
        self._process = start_zygote(its_end, environment, self._words.fileno())
        its_end.close()
        self._owner = os.getpid()
        self._lines = Lines(News)
        self._lock = threading.Lock()
        self._is_open = True
        self._num_asked = 0
        self._members: dict[int, ForkedProcess] = {}
        """Running members, by number."""

    @property
    def is_alive(self) -> bool:
        """Whether the zygote accepts requests."""
        self.listen()
        return self._is_open and self._process.returncode is None

    def fork(self, ticket: Ticket, environment: Mapping[str, str], log: Path) -> "ForkedProcess":
        """Request a member; ConnectionError if the zygote accepts no more requests."""
        with self._lock:
            number = self._num_asked
            self._num_asked += 1
            member = self._members[number] = ForkedProcess(self, log)
        birth = Birth(
            number=number,
            ticket=ticket,
            environment=dict(environment),
            folder=os.getcwd(),
            log=str(log),
        )
        try:
            self._end.sendall(encode_line(birth))
        except ConnectionError:
            self._is_open = False
            del self._members[number]
            raise
        return member

    def listen(self) -> None:
        """Read new reports of the zygote; an interrupt waits, since reports come only once."""
        with uninterrupted(), self._lock:
            self._read_reports()

    def close(self) -> None:
        """End the zygote; running members continue."""
        if os.getpid() == self._owner:  # a forked child may run this, too
            self._process.kill()
            self._process.wait()
            self._end.close()
            self._words.close()

    def _read_reports(self) -> None:
        while self._process.returncode is None:
            try:
                data = self._end.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._leave_orphans()
                return
            for news in self._lines.feed(data):
                member = self._members[news.number]
                if news.pid is not None:
                    member.known_pid = news.pid
                if news.status is not None:
                    member.returncode = news.status
                    del self._members[news.number]

    def _leave_orphans(self) -> None:
        """Leave what a dead zygote has forked to itself; what it has not forked yet will never begin."""
        self._process.wait()
        self._words.seek(0)
        words = self._words.read()
        for member in self._members.values():
            if member.known_pid is None:
                member.log.write_bytes(words)
                member.returncode = -signal.SIGKILL
            else:
                member.orphan = mark_of(member.known_pid)
        self._members.clear()
        self._end.close()
        self._words.close()


class ForkedProcess:
    """The part of subprocess.Popen that the platform uses, for a forked program."""

    def __init__(self, zygote: Zygote, log: Path) -> None:
        self._zygote = zygote
        self.log = log
        self.known_pid: int | None = None
        """The process id; None until the zygote has forked it."""
        self.returncode: int | None = None
        self.orphan: ProcessMark | None = None
        """The identity of the process, if its zygote has died and cannot report its end."""

    def poll(self) -> int | None:
        if self.returncode is None and self.orphan is None:
            self._zygote.listen()
        if self.orphan is not None and is_alive(self.orphan) is False:
            self.returncode = 0
        return self.returncode
