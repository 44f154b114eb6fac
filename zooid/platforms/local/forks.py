"""Members that are forked from a zygote, a process that has imported torch before; so they start in milliseconds."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from zooid.platforms.local.births import Birth, Lines, News, encode_line
from zooid.platforms.protocol import Launch

_PROGRAM = "zooid.platforms.local.zygote"
_PADDING = "-" * 4096
"""An argument that only makes room: a forked member shows its own command there."""
_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.005


class Zygote:
    """One zygote, and what it has told about its members."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._end, its_end = socket.socketpair()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(its_end.fileno()), _PADDING],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[its_end.fileno()],
                start_new_session=True,
            )
        its_end.close()
        self._owner = os.getpid()
        self._lines = Lines(News)
        self._lock = threading.Lock()
        self._members: dict[int, ForkedProcess] = {}

    @property
    def is_alive(self) -> bool:
        with self._lock:
            self._hear()
        return self._process.poll() is None

    def fork(self, launch: Launch, environment: Mapping[str, str], log: Path) -> "ForkedProcess":
        """Ask for a member; it starts as soon as the zygote has torch."""
        with self._lock:
            number = len(self._members)
            member = ForkedProcess(self)
            self._members[number] = member
        birth = Birth(
            number=number,
            program=launch.program,
            spec_url=launch.spec_url,
            environment=dict(environment),
            folder=os.getcwd(),
            log=str(log),
        )
        with contextlib.suppress(ConnectionError):  # a zygote that died just now: who listens to it learns so, too
            self._end.sendall(encode_line(birth))
        return member

    def listen(self) -> None:
        """Take in what the zygote has told since."""
        with self._lock:
            self._hear()

    def close(self) -> None:
        """End the zygote; members that still run go on."""
        if os.getpid() == self._owner:  # a fork of that process may come here, too
            self._process.kill()
            self._process.wait()
        self._end.close()

    def _hear(self) -> None:
        while True:
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

    def _bury(self) -> None:
        """The zygote has died, and nobody will tell how its members end. So they end now, in a way that is known."""
        self._process.wait()
        for member in self._members.values():
            if member.returncode is None:
                if member.known_pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(member.known_pid, signal.SIGKILL)
                member.returncode = -signal.SIGKILL


class ForkedProcess:
    """One member, with as much of subprocess.Popen as the platform uses."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
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
