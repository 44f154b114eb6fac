"""An agent on another machine: it starts, lists and ends members there, on behalf of a coordinator.

Its text is sent to the machine after those of `machine_folder.py` and `machine_facts.py`, and all are executed as one
program. It reads one request a line from standard input, and writes one answer a line, and the states of watched runs
when they change. It ends with its input. Members that it has started live on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # in the program that is sent, these names come from the texts before
    from zooid.entry.machine_facts import facts
    from zooid.entry.machine_folder import (
        STARTER,
        end_members,
        keep,
        last_words,
        leave,
        open_words,
        states,
        sweep,
        sweep_dead,
    )

_LOOK_S = 0.1
_FORGOTTEN_S = 86_400.0
"""Age after which the folder of a run is removed whose processes were all killed."""
_READ_PROGRAM = "import sys; exec(compile(sys.stdin.buffer.read(), 'zooid', 'exec'))"
_started: dict[str, dict[str, Any]] = {}
"""Processes that this agent has started, by run and title."""
_kept: set[str] = set()
"""Runs whose folders this agent keeps."""
_words: dict[str, dict[str, str]] = {}
"""The last words of those that have ended, by run and title. The files go with the folder of the run."""


def serve() -> None:
    """Serve the coordinator until it closes its end."""
    sys.stdout.write("\n")  # a login shell may have greeted without an end of line
    sys.stdout.flush()
    sweep_dead(_FORGOTTEN_S)
    told: dict[str, Any] = {}
    pending = b""
    while True:
        if select.select([0], [], [], _LOOK_S if told else None)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "run" in request:
                    told.setdefault(request["run"], None)
                answer = _answered(request)
                _tell_changes(told)  # before the answer, after which nobody expects the earlier states
                _say(answer)
        _tell_changes(told)


def _tell_changes(told: dict[str, Any]) -> None:
    for run, before in told.items():
        now = member_states(run)
        if now != before:
            told[run] = now
            _say({"run": run, "members": now})


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    number, operation = request.pop("number"), request.pop("operation")
    try:
        return {"number": number, "answer": _OPERATIONS[operation](**request)}
    except Exception as error:  # noqa: BLE001  # the coordinator reports it
        return {"number": number, "error": f"{type(error).__name__}: {error}"}


def start_members(run: str, orders: dict[str, Any], program: str, python: str = sys.executable) -> None:
    """Start a process for each title that does not live yet; the program of each ends with its order."""
    living = {title for title, words in member_states(run).items() if words is None}
    keep(run)
    _kept.add(run)
    for title, order in orders.items():
        if title in living:
            continue
        with open(open_words(run, title), "wb") as words:
            process = subprocess.Popen(
                [os.path.expanduser(python), "-c", _READ_PROGRAM],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _started.setdefault(run, {})[title] = process
        assert process.stdin is not None
        process.stdin.write(f"{program}\nmain_of_order({json.dumps(order)!r})\n".encode())
        process.stdin.close()


def end_started(run: str, titles: list[str], grace_s: float) -> list[str]:
    """End members, and remove the folder of the run if nobody is left."""
    own = {title: process for title, process in _started.get(run, {}).items() if title in titles}
    for process in own.values():
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it might not have taken its place yet, where others find it
    left = end_members(run, [name for title in titles for name in (title, STARTER + title)], grace_s)
    for title, process in own.items():
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        del _started[run][title]
    member_states(run)  # this process leaves the folder, if nobody is being started any more
    sweep(run)  # a process that was interrupted before it took its place has not removed the folder
    return left


def member_states(run: str) -> dict[str, Any]:
    """Return the states of a run's members. Keep its folder until all have ended, since it holds their last words."""
    found = states(run)
    started = dict(_started.get(run, {}))
    for title, process in started.items():
        if process.poll() is None:
            found[title] = None
        elif found.get(title, "") is not None:
            # a process that has recorded its member's end, or was killed, has not failed to start the member
            has_failed = process.returncode > 0
            found[title] = _words.setdefault(run, {}).setdefault(title, last_words(run, title)) if has_failed else ""
    if run in _kept and all(found[title] is not None for title in started):
        _kept.discard(run)
        leave(run)
    return found


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "ping": lambda: None,
    "start": start_members,
    "watch": lambda run: None,
    "end": end_started,
    "facts": lambda: facts(),
}


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
