"""A command that leaves its terminal once training has begun, and goes on in a session of its own."""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Self

from rich.console import Console

from zooid.core.errors import InputError
from zooid.core.runs.events import Event, MembersAdopted, RunStarted, StepCommitted
from zooid.report import View, say, view_for

_BEGUN = b"."
_LOGS = Path("runs")
"""Folder of logs in the current one, where runs without --store have theirs."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_SIGNAL = 128
"""Added to the number of the signal that ended the command, as shells do."""


def detach(url: str, *, as_json: bool) -> View:
    """Go on in a new process with its own session, and return the view there.

    The process that was called waits until training has begun, says so and exits with status 0. If the new process ends
    earlier, it exits with the same status, and nothing is left behind. Signals are passed on until then.
    """
    log, made_folder = _new_log(url)
    ready, its_ready = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until both processes have their handlers
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(its_ready)
        _forward_signals(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if os.read(ready, 1) == _BEGUN:
            _say_commands(url, log, pid, as_json=as_json)
            _exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _remove(log, made_folder=made_folder)
        _exit(status if status >= 0 else _EXIT_SIGNAL - status)
    os.close(ready)
    os.setsid()
    _redirect(0, Path(os.devnull), os.O_RDONLY)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return _DetachingView(log, its_ready, as_json=as_json)


class _DetachingView(View):
    """Shows events on the terminal until training has begun, and in the log from then on."""

    def __init__(self, log: Path, ready: int, *, as_json: bool) -> None:
        self._log = log
        self._ready: int | None = ready
        """The pipe to the process that waits for the beginning; None after it."""
        self._new_view: Callable[[], View] = lambda: view_for(Console(), as_json=as_json)
        self._view = self._new_view()
        self._started: RunStarted | None = None

    def __enter__(self) -> Self:
        self._view.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._view.__exit__(*exception)

    def show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._started = event
        if self._ready is not None and isinstance(event, StepCommitted | MembersAdopted):
            self._leave_terminal()
        self._view.show(event)

    def _leave_terminal(self) -> None:
        assert self._ready is not None
        self._view.__exit__(None, None, None)
        for number in (sys.stdout.fileno(), sys.stderr.fileno()):
            _redirect(number, self._log, os.O_WRONLY | os.O_APPEND)
        self._view = self._new_view()
        self._view.__enter__()
        if self._started is not None:
            self._view.show(self._started)
        with suppress(BrokenPipeError):  # whoever waited was killed
            os.write(self._ready, _BEGUN)
        os.close(self._ready)
        self._ready = None


def _new_log(url: str) -> tuple[Path, bool]:
    """Create a log file that did not exist, and say whether its folder is new, too."""
    name = url.rstrip("/").rpartition("/")[2] or "run"
    made_folder = not _LOGS.exists()
    log = _LOGS / f"{name}.log"
    try:
        _LOGS.mkdir(exist_ok=True)
        for number in itertools.count(2):
            with suppress(FileExistsError):
                log.touch(exist_ok=False)
                break
            log = _LOGS / f"{name}-{number}.log"
    except OSError as error:
        raise InputError(
            f"--detach cannot write the log {log}: {error.strerror}; call it in a folder that you can write to"
        ) from error
    return log.absolute(), made_folder


def _remove(log: Path, *, made_folder: bool) -> None:
    log.unlink(missing_ok=True)
    if made_folder:
        with suppress(OSError):  # it holds something else by now
            log.parent.rmdir()


def _redirect(number: int, path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    os.dup2(descriptor, number)
    os.close(descriptor)


def _forward_signals(pid: int) -> None:
    """Pass signals on to a process, which decides what follows."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, frame: os.kill(pid, received))


def _say_commands(url: str, log: Path, pid: int, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"store": url, "log": str(log), "process": pid}) + "\n")
        return
    console = Console()
    say(console, f"training goes on in the background, as process {pid}; its output is in {log}")
    for command, meaning in (
        ("watch", "shows it"),
        ("stop", "ends it at its next step boundary"),
        ("resume", "continues it after it was stopped or interrupted"),
    ):
        say(console, f"  zooid {command} {url}  {meaning}")


def _exit(status: int) -> NoReturn:
    """Exit at once: the other process has said everything, and ends the run if there is one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
