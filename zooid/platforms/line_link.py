"""The link to a program that serves members elsewhere: one child process, over which requests and states travel as
lines of JSON."""

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zooid.core.errors import ZooidError

_ANSWER_S = 60.0
_END_S = 2.0
_PING_S, _SILENCE_S = 5.0, 15.0
"""Time between two pings of a link that is watched for silence, and how long an answer may take."""


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
        self._num_waiting = 0
        """How many requests are in flight."""
        self._greeting = self._complaint = ""
        """The last words on standard output that are no message, and the last ones on standard error."""
        self._is_open = True
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise Unreachable(
                f"{name} cannot be reached: the program {command[0]} cannot be started on this machine "
                f"({error.strerror}); check that it is installed, and that PATH has its folder"
            ) from error
        self._threads = [self._begun(work) for work in (self._read, self._listen)]

    @property
    def is_open(self) -> bool:
        return self._is_open

    def ask(self, operation: str, **request: Any) -> Any:
        """Ask for something, and wait for the answer."""
        with self._changed:
            self._num_waiting += 1
        try:
            answer = self._asked(_ANSWER_S, operation, request)
        finally:
            with self._changed:
                self._num_waiting -= 1
        if answer is None:
            raise Unreachable(f"{self._name} did not answer within {_ANSWER_S:g} s")
        if "error" in answer:
            raise Unreachable(f"{self._name}: {answer['error']}")
        return answer["answer"]

    def states(self, run: str) -> Mapping[str, Any]:
        """Return the states of a run's members by title, as of a moment ago; empty before they are watched."""
        return self._states.get(run, {})

    def is_watching(self, run: str) -> bool:
        """Whether the other side tells the states of this run."""
        return run in self._states

    def end_in_silence(self) -> None:
        """Close the link by itself when the other side is silent: it leaves a ping unanswered, and has nothing to do.

        The other side serves one request after the other. So there are no pings while a request is in flight.
        """
        self._threads.append(self._begun(self._ping))

    def broken(self) -> Unreachable:
        """Return the error of a link that has ended, with the last line that the child process has printed."""
        self._join()
        why = self._complaint or self._greeting or "the connection was closed"
        return Unreachable(f"{self._name} cannot be reached: {why}")

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
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        end_child(self._process)
        self._join()

    def _begun(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"link-{self._name}", daemon=True)
        thread.start()
        return thread

    def _join(self) -> None:
        """Wait a little for all threads. An ssh process in the background may keep standard error open for hours."""
        deadline_s = time.monotonic() + _END_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _asked(self, limit_s: float, operation: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send a request, and wait for the answer; None if there is none in time."""
        number = next(self._numbers)
        self.send(json.dumps({"number": number, "operation": operation, **request}).encode() + b"\n")
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or not self._is_open, limit_s)
            answer = self._answers.pop(number, None)
            is_open = self._is_open
        if answer is None and not is_open:
            raise self.broken()
        return answer

    def _ping(self) -> None:
        """Ping the other side from time to time, and kill the child process when it is silent."""
        with suppress(Unreachable):
            while not self._ends_within(_PING_S):
                if self._num_waiting == 0 and self._asked(_SILENCE_S, "ping", {}) is None and self._num_waiting == 0:
                    self._complaint = f"it has been silent for {_SILENCE_S:g} s"
                    self._process.kill()
                    return

    def _ends_within(self, limit_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_open, limit_s)

    def _read(self) -> None:
        """Take answers and states until the connection ends."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:  # a login shell may greet
                    message = None
                if isinstance(message, dict):
                    self._take(message)
                else:
                    self._greeting = _words(line) or self._greeting
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "run" in message:
                self._states[message["run"]] = message["members"]
            else:
                self._answers[message["number"]] = message
            self._changed.notify_all()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._complaint = _words(line) or self._complaint


def _words(line: bytes) -> str:
    return line.decode(errors="replace").strip()


def end_child(process: subprocess.Popen[bytes]) -> None:
    """End a child process that ends with its input; one that does not is killed."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(_END_S)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
