"""Ranks of a process group as processes, which a test starts, hears, disturbs and sees end.

A server that has torch imported forks them, so that starting one costs milliseconds.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch
from torch import distributed as dist

import zooid.comm  # noqa: F401  # registers the backend

Way = Literal["gloo", "store", "tcp"]
"""Backend, and for zooid the transport."""

START_LIMIT_S = 60.0
LIMIT_S = 30.0

FORKING = multiprocessing.get_context("forkserver")
"""Of all tests that start processes with torch: there is one such server."""
FORKING.set_forkserver_preload(
    [
        "pytest",
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining",
        "torch.export._trace",
        "transformers.models.gpt2.modeling_gpt2",
        "zooid.cli.main",
        "zooid.comm",
        "zooid.coordinator",
        "zooid.profiler.__main__",
        "zooid.worker.member.train_task",
        "zooid.worker.member.prepare_task",
    ]
)


@dataclass(frozen=True)
class Rank:
    """What a program knows of itself."""

    number: int
    size: int
    parent: Connection
    """To report anything to the test, and to be told."""

    def join(self, way: Way, path: str, *, timeout_s: float = LIMIT_S, **options: str) -> None:
        """Make the default group, of ranks that meet at a path."""
        query = {"transport": "tcp", **options} if way == "tcp" else options
        text = "&".join(f"{name}={value}" for name, value in query.items())
        url = f"file://{path}" + (f"?{text}" if text and way != "gloo" else "")
        self.join_url(url, backend="gloo" if way == "gloo" else "zooid", timeout_s=timeout_s)

    def join_url(self, url: str, *, backend: str = "zooid", timeout_s: float = LIMIT_S) -> None:
        dist.init_process_group(
            backend,
            init_method=url,
            rank=self.number,
            world_size=self.size,
            timeout=timedelta(seconds=timeout_s),
        )


Program = Callable[..., Any]
"""Called with a Rank and the arguments that the test gives; what it returns must be picklable, tensors excepted."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    at_s: float
    """By the monotonic clock, which all processes of a machine share."""
    value: Any = None
    error: str = ""
    """Type and message of what it raised."""
    traceback: str = ""


class Ranks:
    """The processes of one program."""

    def __init__(self, processes: Sequence[BaseProcess], ends: Sequence[Connection]) -> None:
        self._processes = processes
        self._ends = ends

    def hear(self, rank: int, limit_s: float = LIMIT_S) -> Any:
        """What a rank reports next."""
        message = self._receive(rank, limit_s)
        assert not isinstance(message, Ended), f"rank {rank} ended: {message.error}\n{message.traceback}"
        return message

    def is_silent(self, rank: int, for_s: float) -> bool:
        """Whether a rank, once all that it has reported is heard, reports nothing for so long."""
        while self._ends[rank].poll(0):
            self.hear(rank)
        return not self._ends[rank].poll(for_s)

    def tell(self, rank: int, message: object) -> None:
        self._ends[rank].send(message)

    def send_signal(self, rank: int, number: signal.Signals) -> float:
        """When it was sent."""
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)
        return time.monotonic()

    def ended(self, rank: int, limit_s: float = LIMIT_S) -> Ended:
        """How a rank's program ended; reports that nobody heard are dropped."""
        deadline_s = time.monotonic() + limit_s
        while True:
            message = self._receive(rank, deadline_s - time.monotonic())
            if isinstance(message, Ended):
                return message

    def exit_code(self, rank: int, limit_s: float = LIMIT_S) -> int | None:
        """Of the process, which has exited by itself; None where it has not."""
        self._processes[rank].join(limit_s)
        return self._processes[rank].exitcode

    def results(self, limit_s: float = LIMIT_S) -> list[Any]:
        """What the programs returned; none of them, and none of the processes, has failed."""
        deadline_s = time.monotonic() + limit_s
        ended = [self.ended(rank, deadline_s - time.monotonic()) for rank in range(len(self._processes))]
        failures = [f"rank {rank}: {each.traceback}" for rank, each in enumerate(ended) if each.error]
        assert not failures, "\n".join(failures)
        codes = [self.exit_code(rank, deadline_s - time.monotonic()) for rank in range(len(self._processes))]
        assert codes == [0] * len(codes)
        return [each.value for each in ended]

    def _receive(self, rank: int, limit_s: float) -> Any:
        assert self._ends[rank].poll(max(0.0, limit_s)), f"rank {rank} said nothing for {limit_s:.1f} s"
        try:
            return self._ends[rank].recv()
        except EOFError:
            raise AssertionError(f"rank {rank} died with exit code {self.exit_code(rank)}") from None


@contextmanager
def started(program: Program, size: int, *arguments: object, is_exit_whole: bool = False) -> Iterator[Ranks]:
    """The program on every rank; at the end of the block, what still runs is killed.

    A whole exit is a user's, in which objects are finalised and what threads hold may hang; it takes a second longer.
    """
    processes: list[BaseProcess] = []
    ends: list[Connection] = []
    try:
        for number in range(size):
            own_end, its_end = FORKING.Pipe()
            ends.append(own_end)
            rank = Rank(number, size, its_end)
            processes.append(FORKING.Process(target=_run, args=(program, rank, arguments, is_exit_whole), daemon=True))
            processes[-1].start()
            its_end.close()
        for end in ends:
            assert end.poll(START_LIMIT_S), "a rank did not start"
            end.recv()
        yield Ranks(processes, ends)
    finally:
        for process in processes:
            process.kill()  # also ends what was stopped
            process.join()
        for end in ends:
            end.close()


def run(program: Program, size: int, *arguments: object, limit_s: float = LIMIT_S) -> list[Any]:
    """What the program returns on each rank."""
    with started(program, size, *arguments) as ranks:
        return ranks.results(limit_s)


def _run(program: Program, rank: Rank, arguments: Sequence[object], is_exit_whole: bool) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what is imported need not be looked through when the process ends
    rank.parent.send("started")
    code = 0
    try:
        ended = Ended(value=program(rank, *arguments), at_s=time.monotonic())
    except BaseException as error:  # noqa: BLE001  # the test decides what it expects
        text = f"{type(error).__name__}: {error}"
        ended = Ended(at_s=time.monotonic(), error=text, traceback=traceback.format_exc())
        code = 1
    rank.parent.send(ended)
    if is_exit_whole:
        ctypes.pythonapi.Py_Exit(code)  # multiprocessing ends its processes with os._exit instead
    sys.exit(code)
