"""The link to a program that serves members elsewhere: one child process, over which requests and states travel as
lines of JSON."""

import collections
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zooid.core.errors import ZooidError

_ANSWER_S = 60.0
_NUM_COMPLAINTS = 20
_END_S = 2.0


class Unreachable(ZooidError):
    """A machine or a cluster cannot be reached, or the program that serves there does not answer."""


class LineLink:
    """A connection to a serving program, through a child process such as ssh. It lasts as long as that process."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`name` is what users call the other side; the command is run with this environment, or that of this process.

        The child process has a session of its own, since Ctrl-C is for the coordinator, which still needs the link to
        end members.
        """
        self._name = name
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._states: dict[str, dict[str, Any]] = {}
        self._complaints: collections.deque[str] = collections.deque(maxlen=_NUM_COMPLAINTS)
        self._is_open = True
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=read, name=f"link-{name}", daemon=True) for read in (self._read, self._listen)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def ask(self, operation: str, **request: Any) -> Any:
        """Ask for something, and wait for the answer."""
        number = next(self._numbers)
        self.send(json.dumps({"number": number, "operation": operation, **request}).encode() + b"\n")
        deadline_s = time.monotonic() + _ANSWER_S
        with self._changed:
            while number not in self._answers:
                left_s = deadline_s - time.monotonic()
                if not self._is_open:
                    raise self.broken()
                if left_s <= 0:
                    raise Unreachable(f"{self._name} did not answer within {_ANSWER_S:g} s")
                self._changed.wait(left_s)
            answer = self._answers.pop(number)
        if "error" in answer:
            raise Unreachable(f"{self._name}: {answer['error']}")
        return answer["answer"]

    def states(self, run: str) -> Mapping[str, Any]:
        """Return the states of a run's members by title, as of a moment ago; empty before they are watched."""
        return self._states.get(run, {})

    def is_watching(self, run: str) -> bool:
        """Whether the other side tells the states of this run."""
        return run in self._states

    def broken(self) -> Unreachable:
        """Return the error of a link that has ended, with the last line that the child process has printed."""
        for reader in self._readers:
            reader.join(_END_S)
        last = self._complaints[-1] if self._complaints else "the connection was closed"
        return Unreachable(f"{self._name} cannot be reached: {last}")

    def send(self, data: bytes) -> None:
        """Write to the input of the child process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self.broken() from error

    def close(self) -> None:
        """End the child process; members live on."""
        self._is_open = False
        end_child(self._process)
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        """Take answers and states until the connection ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # a login shell may greet
                message = None
            if not isinstance(message, dict):
                self._complain(line)
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
            self._complain(line)

    def _complain(self, line: bytes) -> None:
        words = line.decode(errors="replace").strip()
        if words:
            self._complaints.append(words)


def end_child(process: subprocess.Popen[bytes]) -> None:
    """End a child process that ends with its input; one that does not is killed."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(_END_S)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
