"""Members of a measurement: processes that do what they are asked, all at the same moment, and answer.

A crew runs one program, `python -m lab.member RANK WORLD_SIZE`, once for each member, wherever its prefix
puts it. Requests and answers are lines of JSON over the processes' pipes, which network namespaces do not keep apart.
No wait is without a limit, and no member outlives its crew.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from zooid.core.environment import member_environment
from zooid.core.errors import ZooidError

Answer: TypeAlias = dict[str, Any]

_START_TIMEOUT_S = 120.0
"""Importing torch takes two seconds of a core; eight members on two cores, beside other work, take their time."""
_LEAD_S = 0.1
"""From asking to a common start: enough for the request to reach everybody."""
_COMPLAINTS_S = 0.5
"""After one member failed, the others may say why: often its failure follows from theirs."""
_END_TIMEOUT_S = 5.0
_TAIL_CHARACTERS = 2000


class MemberFailed(ZooidError):
    """A member of the laboratory died, failed or did not answer in time."""


@dataclass(frozen=True)
class Home:
    """Where a member runs."""

    prefix: tuple[str, ...] = ()
    """What to put before its command, such as `ip netns exec NAME`."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that only this member has."""


class _Member:
    """A process, and the thread that listens to it."""

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], answers: "_Answers"
    ) -> None:
        self.number = number
        self._log = tempfile.TemporaryFile(prefix="member-")  # noqa: SIM115  # `end` closes it
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._answers = answers
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def last_words(self, what: str) -> str:
        """What went wrong, and the end of what it printed."""
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-_TAIL_CHARACTERS:].strip()
        return f"member {self.number}: {what}; it said: {said!r}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join(_END_TIMEOUT_S)  # somebody whom the member started may still hold its pipe
        with contextlib.suppress(OSError):  # a request that it never read
            assert self.process.stdin is not None
            self.process.stdin.close()
        self._log.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                self._answers.put((self, line))
        self._answers.put((self, ""))


_Answers: TypeAlias = "queue.SimpleQueue[tuple[_Member, str]]"
"""Lines of members; an empty one says that the member is gone."""


class Crew:
    """Members that do what they are asked."""

    def __init__(self) -> None:
        self._answers: _Answers = queue.SimpleQueue()
        self._members: list[_Member] = []

    def start(self, homes: Sequence[Home], environment: Mapping[str, str]) -> None:
        for number, home in enumerate(homes):
            command = [*home.prefix, sys.executable, "-m", "lab.member", str(number), str(len(homes))]
            variables = {**member_environment(1), **environment, **dict(home.environment)}
            self._members.append(_Member(number, command, variables, self._answers))
        self._collect(self._members, _START_TIMEOUT_S)

    def end(self) -> None:
        for member in self._members:
            member.end()

    def ask(
        self, task: str, arguments: Mapping[str, object] | None = None, *, timeout_s: float, only: int | None = None
    ) -> list[Answer]:
        """Let every member (or only one) do a task, and return their answers in order.

        MemberFailed soon after one member fails, and at the latest after `timeout_s`.
        """
        asked = self._members if only is None else [self._members[only]]
        line = json.dumps({**(arguments or {}), "task": task}) + "\n"
        for member in asked:
            try:
                member.send(line)
            except OSError:
                raise MemberFailed(member.last_words(f"is gone, and cannot be asked to {task}")) from None
        return self._collect(asked, timeout_s)

    def ask_at_once(self, task: str, arguments: Mapping[str, object], *, timeout_s: float) -> list[Answer]:
        """The same, with a common start: `start_s` on the clock that all processes of this machine share."""
        return self.ask(task, {**arguments, "start_s": time.monotonic() + _LEAD_S}, timeout_s=timeout_s)

    def _collect(self, asked: Sequence[_Member], timeout_s: float) -> list[Answer]:
        deadline_s = time.monotonic() + timeout_s
        answers: dict[int, Answer] = {}
        failures: dict[int, str] = {}
        while len({*answers, *failures}) < len(asked):
            try:
                member, line = self._answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                late = [member for member in asked if member.number not in answers and not failures]
                failures.update(
                    {member.number: member.last_words(f"no answer in {timeout_s:.1f} s") for member in late}
                )
                break
            answer = json.loads(line) if line else {"error": f"ended with status {member.process.wait()}"}
            if "error" not in answer:
                answers[member.number] = answer
            elif member.number not in failures:
                failures[member.number] = member.last_words(answer["error"])
                deadline_s = min(deadline_s, time.monotonic() + _COMPLAINTS_S)
        if failures:
            raise MemberFailed("; ".join(failures.values()))
        return [answers[member.number] for member in asked]


@contextmanager
def crew(homes: Sequence[Home], environment: Mapping[str, str]) -> Iterator[Crew]:
    """Start a member in each home, and end them all when the block is left."""
    made = Crew()
    try:
        made.start(homes, environment)
        yield made
    finally:
        made.end()


def wait_until(start_s: float) -> None:
    """For a member: sleep until the common start."""
    time.sleep(max(0.0, start_s - time.monotonic()))


def serve(tasks: Mapping[str, Any]) -> None:
    """For a member: answer requests until the crew closes the pipe or is gone."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print is no answer
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    answers.write("{}\n")
    while True:
        arguments = json.loads(requests.get())
        try:
            answer = tasks[arguments.pop("task")](**arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the crew is told, and this member ends
            traceback.print_exc()
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
            return
        answers.write(json.dumps(answer or {}) + "\n")


def _read_requests(requests: "queue.SimpleQueue[str]") -> None:
    """A member in the middle of a task must notice, too, that nobody waits for it any more."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(1)
