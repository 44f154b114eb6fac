"""The link to the agent on another machine: one ssh process, over which requests and states travel as lines."""

import collections
import itertools
import json
import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zooid.core.errors import ZooidError
from zooid.platforms.programs import agent_program

logger = logging.getLogger(__name__)

_READ_PROGRAM = """
import os
line = program = b""
while line[-1:] != b"\\n":
    line += os.read(0, 1) or os._exit(1)
while len(program) < int(line):
    program += os.read(0, int(line) - len(program)) or os._exit(1)
exec(compile(program, "zooid", "exec"))
"""
"""The first line of the input says how long the program is; requests follow it, and must not be read with it."""
_CONNECT_S = 10
_ALIVE_S, _NUM_ALIVE = 3, 3
"""A machine that is silent for so many seconds, so many times, counts as cut off."""
_ANSWER_S = 60.0
_NUM_COMPLAINTS = 20
_END_S = 2.0


class MachineUnreachable(ZooidError):
    """A machine cannot be reached, or the agent on it does not answer."""


class AgentLink:
    """An agent on another machine, for as long as the connection lasts."""

    def __init__(self, host: str, python: str, config: str = "") -> None:
        self.host = host
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._states: dict[str, dict[str, str | None]] = {}
        self._complaints: collections.deque[str] = collections.deque(maxlen=_NUM_COMPLAINTS)
        self._is_open = True
        self.num_calls = 0
        """Number of requests so far."""
        self._process = subprocess.Popen(
            ssh_command(host, [python, "-u", "-c", _READ_PROGRAM], config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the coordinator, which still needs the link to end members
        )
        self._readers = [
            threading.Thread(target=read, name=f"ssh-{host}", daemon=True) for read in (self._read, self._listen)
        ]
        for reader in self._readers:
            reader.start()

    def begin(self) -> None:
        """Start the agent, and wait until it answers."""
        program = agent_program().encode()
        self._send(f"{len(program)}\n".encode() + program)
        self.ask("ping")

    @property
    def is_open(self) -> bool:
        return self._is_open

    def ask(self, operation: str, **request: Any) -> Any:
        """Ask the agent for something, and wait for the answer."""
        number = next(self._numbers)
        self.num_calls += 1
        self._send(json.dumps({"number": number, "operation": operation, **request}).encode() + b"\n")
        deadline_s = time.monotonic() + _ANSWER_S
        with self._changed:
            while number not in self._answers:
                left_s = deadline_s - time.monotonic()
                if not self._is_open:
                    raise MachineUnreachable(f"{self.host} cannot be reached: {self.complaint}")
                if left_s <= 0:
                    raise MachineUnreachable(f"{self.host} does not answer for {_ANSWER_S:g} s")
                self._changed.wait(left_s)
            answer = self._answers.pop(number)
        if "error" in answer:
            raise MachineUnreachable(f"{self.host}: {answer['error']}")
        return answer["answer"]

    def watch(self, run: str) -> Mapping[str, str | None]:
        """Return the states of a run's members there, as of a moment ago."""
        if run not in self._states:
            self.ask("watch", run=run)  # the states come before the answer
        return self._states[run]

    @property
    def complaint(self) -> str:
        """The last line that ssh has printed."""
        return self._complaints[-1] if self._complaints else "the connection was closed"

    def close(self) -> None:
        """Close the connection; members live on."""
        self._is_open = False
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            for reader in self._readers:
                reader.join(_END_S)  # ssh says more than the broken pipe
            raise MachineUnreachable(f"{self.host} cannot be reached: {self.complaint}") from error

    def _read(self) -> None:
        """Take answers and states until the connection ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # a login shell may greet
                self._complaints.append(line.decode(errors="replace").strip())
                continue
            with self._changed:
                if "run" in message:
                    self._states[message["run"]] = message["members"]
                else:
                    self._answers[message["number"]] = message
                self._changed.notify_all()
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints.append(line.decode(errors="replace").strip())


def ssh_command(host: str, command: Sequence[str], config: str = "") -> list[str]:
    """Return the command that runs another one on a host, without asking for anything."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": _CONNECT_S,
        "ServerAliveInterval": _ALIVE_S,
        "ServerAliveCountMax": _NUM_ALIVE,
        "ForwardAgent": "no",
        "ForwardX11": "no",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", *(["-F", config] if config else []), *words, "-T", "--", host, shlex.join(command)]
