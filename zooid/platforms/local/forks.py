"""Members that are forked from a zygote, a process that has imported torch before; so they start in milliseconds.

All platforms of a process share its zygotes. One that has had nothing to do for a while ends, and so do all with the
process.
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
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from zooid.core.environment import settings_at_start
from zooid.core.interrupts import uninterrupted
from zooid.platforms.local.fork_messages import Birth, Lines, News, encode_line
from zooid.platforms.platform import Launch

_PROGRAM = "zooid.platforms.local.zygote"
_PADDING = "-" * 4096
"""An argument that only makes room: a forked member shows its own command there."""
_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.005
IDLE_S = 60.0
"""A zygote that has had no member for this long ends: it keeps some 300 MB."""

_zygotes: dict[tuple[str, ...], "Zygote"] = {}
"""Living zygotes of this process, by the settings that their members are started with."""
_starting = threading.Lock()


def fork_member(launch: Launch, environment: Mapping[str, str], log: Path) -> "ForkedProcess":
    """A member that is forked from a zygote, as soon as that has torch."""
    while True:
        zygote = ready_zygote(environment)
        with contextlib.suppress(ConnectionError):  # it ends now, for it has had nothing to do: ask another one
            return zygote.fork(launch, environment, log)


def ready_zygote(environment: Mapping[str, str]) -> "Zygote":
    """A living zygote that was started with what members of this environment are started with."""
    key = settings_at_start(environment)
    with _starting:
        zygote = _zygotes.get(key)
        if zygote is None or not zygote.is_alive:
            if not _zygotes:
                atexit.register(close_zygotes)
            zygote = _zygotes[key] = Zygote(environment)
    return zygote


def close_zygotes() -> None:
    """End all zygotes of this process; members that still run go on."""
    while _zygotes:
        _zygotes.popitem()[1].close()


class ZygoteProcess(Protocol):
    """As much of a zygote's process as is needed here."""

    returncode: int | None

    def kill(self) -> None: ...

    def wait(self) -> int: ...


def start_zygote(end: socket.socket, environment: Mapping[str, str], words: int) -> ZygoteProcess:
    """Start an interpreter that forks members when it is asked at this socket, and prints to a file's descriptor."""
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
    """One zygote, and what it has told about its members."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._end, its_end = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the zygote
        self._process = start_zygote(its_end, environment, self._words.fileno())
        its_end.close()
        self._owner = os.getpid()
        self._lines = Lines(News)
        self._lock = threading.Lock()
        self._is_open = True
        self._num_asked = 0
        self._members: dict[int, ForkedProcess] = {}
        """Members that have not ended, by number."""

    @property
    def is_alive(self) -> bool:
        """True while the zygote takes requests."""
        self.listen()
        return self._is_open and self._process.returncode is None

    def fork(self, launch: Launch, environment: Mapping[str, str], log: Path) -> "ForkedProcess":
        """Ask for a member; ConnectionError where the zygote takes no more requests."""
        with self._lock:
            number = self._num_asked
            self._num_asked += 1
            member = self._members[number] = ForkedProcess(self, log)
        birth = Birth(
            number=number,
            program=launch.program,
            spec_url=launch.spec_url,
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
        """Take in what the zygote has told since. An interrupt waits: what was read would never be told again."""
        with uninterrupted(), self._lock:
            self._hear()

    def close(self) -> None:
        """End the zygote; members that still run go on."""
        if os.getpid() == self._owner:  # a fork of that process may come here, too
            self._process.kill()
            self._process.wait()
            self._end.close()
            self._words.close()

    def _hear(self) -> None:
        while self._process.returncode is None:
            try:
                data = self._end.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._bury()
                return
            for news in self._lines.feed(data):
                member = self._members[news.number]
                if news.pid is not None:
                    member.known_pid = news.pid
                if news.status is not None:
                    member.returncode = news.status
                    del self._members[news.number]

    def _bury(self) -> None:
        """The zygote has ended, and nobody will tell how its members end. So they end now, in a way that is known."""
        self._process.wait()
        self._words.seek(0)
        words = self._words.read()
        for member in self._members.values():
            if member.known_pid is None:
                member.log.write_bytes(words)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(member.known_pid, signal.SIGKILL)
            member.returncode = -signal.SIGKILL
        self._members.clear()
        self._end.close()
        self._words.close()


class ForkedProcess:
    """One member, with as much of subprocess.Popen as the platform uses."""

    def __init__(self, zygote: Zygote, log: Path) -> None:
        self._zygote = zygote
        self.log = log
        self.known_pid: int | None = None
        """None until the zygote has forked it."""
        self.returncode: int | None = None

    @property
    def pid(self) -> int | None:
        """Waits until the zygote has forked it; None where the zygote died before."""
        while self.known_pid is None and self.returncode is None:
            self._zygote.listen()
            time.sleep(_LOOK_S)
        return self.known_pid

    def poll(self) -> int | None:
        if self.returncode is None:
            self._zygote.listen()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline_s is not None and timeout is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(_PROGRAM, timeout)
            time.sleep(_LOOK_S)
        return status
