"""Runs each architecture in a process of its own, with a limit on time and memory, from a parent that is warm."""

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

TIME_LIMIT_S = 120
"""Processor time, which does not depend on what else the machine does."""
WAITING = 10
"""A process that has not ended after so many times its limit waits for something that does not come."""
MEMORY_LIMIT_BYTES = 12 * 2**30

Row = dict[str, Any]
Trial = Callable[[str], Row]


@dataclass(frozen=True)
class _Running:
    name: str
    process: BaseProcess
    started_s: float


def run_all(trial: Trial, names: Sequence[str], num_jobs: int, time_limit_s: int = TIME_LIMIT_S) -> Iterator[Row]:
    """A row for every name, in the order in which they are done. A process that ends without one is a row, too."""
    waiting = list(reversed(names))
    running: dict[Connection, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_jobs:
                name = waiting.pop()
                receiver, process = _start(trial, name, time_limit_s)
                running[receiver] = _Running(name, process, time.monotonic())
            done = wait(list(running), timeout=0.5)
            for receiver in [receiver for receiver in running if receiver in done]:
                yield _received(receiver, running.pop(receiver), time_limit_s)
            for receiver, task in list(running.items()):
                if time.monotonic() - task.started_s > WAITING * time_limit_s:
                    yield _ended(running.pop(receiver), f"it has not ended after {WAITING * time_limit_s} s")
    finally:
        for task in running.values():
            task.process.kill()


def _start(trial: Trial, name: str, time_limit_s: int) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork")  # importing torch and transformers again would take seconds
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(trial, name, time_limit_s, sender), daemon=True)
    process.start()
    sender.close()
    return receiver, process


def _run(trial: Trial, name: str, time_limit_s: int, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (time_limit_s, time_limit_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)  # libraries warn about architectures that nobody asked for
    sender.send(trial(name))


def _received(receiver: Connection, task: _Running, time_limit_s: int) -> Row:
    row: Row | None = None
    with contextlib.suppress(EOFError):
        row = receiver.recv()
    task.process.join()
    if row is not None:
        return row
    if task.process.exitcode == -signal.SIGXCPU:
        return _ended(task, f"it took more than {time_limit_s} s of processor time")
    return _ended(task, f"its process ended with status {task.process.exitcode}")


def _ended(task: _Running, reason: str) -> Row:
    task.process.kill()
    task.process.join()
    return {"architecture": task.name, "outcome": "error", "layers": 0, "reason": reason}
