"""Interference: how neighbours on a machine, and messages, slow computing down (FuncPipe's β, Appendix B).

Members on one machine share its memory and caches. A member's transfers and its layers share cores, caches and the
interpreter. The same computation is timed with and without messages in flight, both times with all cores busy. The
difference is the cost of the messages.
"""

import contextlib
import ctypes
import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import distributed as dist

from zooid.comm.echo import EchoGroup
from zooid.core.environment import profile_effort, rough_repeats
from zooid.core.errors import TrainingError
from zooid.profiler.grain_times import median_is_known
from zooid.store import ObjectStore

_SMALL_BYTES = 4 * 2**10
_LARGE_BYTES = 2**20
_PAUSE_S = 0.005
"""Pause between two messages, about that of a pipeline with small grains."""
_NUM_IN_FLIGHT = 2
_MIN_ROUNDS = 3
_MAX_ROUNDS = 8
_ROUND_S = 0.1
_PRECISION = 0.1
"""Rounds end when the cost is known to this fraction of it, which suffices since the cost is a small part of a step."""
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def busy_neighbours(count: int, work: Callable[[], None]) -> Iterator[None]:
    """While inside, `count` copies of this process repeat `work`, which must only compute.

    Copies are forked, so that they start at once with everything built. They touch neither the store nor any file.
    """
    parent = os.getpid()
    children = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                _repeat_forever(work, parent)
            children.append(child)
        yield
        if ended := [child for child in children if os.waitpid(child, os.WNOHANG) != (0, 0)]:
            children = [child for child in children if child not in ended]
            raise TrainingError(
                "a neighbour process ended while layers were measured, so that their times on a busy machine are "
                "unknown; look for its error above, and measure again"
            )
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _repeat_forever(work: Callable[[], None], parent: int) -> None:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive a parent that was killed
        while os.getppid() == parent:
            work()
    finally:
        os._exit(1)


@dataclass(frozen=True)
class MessageCost:
    """Processor time of one end of a message: cpu_s + bytes × cpu_s_per_byte."""

    cpu_s: float
    cpu_s_per_byte: float


def measure_message_cost(work: Callable[[], None], store: ObjectStore, num_neighbours: int) -> MessageCost:
    """Return the processor time that sending or receiving takes from `work` while all cores are busy."""
    with busy_neighbours(num_neighbours, work):
        small_s = _cost_s(work, store, _SMALL_BYTES, num_neighbours + 1)
        large_s = _cost_s(work, store, _LARGE_BYTES, num_neighbours + 1)
    per_byte = max(0.0, large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES)
    return MessageCost(cpu_s=small_s, cpu_s_per_byte=per_byte)


def _cost_s(work: Callable[[], None], store: ObjectStore, num_bytes: int, num_cores: int) -> float:
    """Return the core-seconds lost per end of a message, from alternating rounds with and without messages."""
    costs: list[float] = []
    for _ in range(rough_repeats(_MAX_ROUNDS)):
        if len(costs) >= _MIN_ROUNDS and median_is_known(costs, _PRECISION):
            break
        quiet_s, _ = _pace(work, None)
        with _Chatter(store, num_bytes) as chatter:
            busy_s, rounds_s = _pace(work, chatter)
        lost_s = (busy_s - quiet_s) / busy_s * rounds_s
        costs.append(lost_s * num_cores / max(1, chatter.num_ends))
    return max(0.0, statistics.median(costs))


def _pace(work: Callable[[], None], chatter: "_Chatter | None") -> tuple[float, float]:
    """Return the mean seconds of one run of `work`, and the seconds of all runs."""
    begin_s = time.perf_counter()
    count = 0
    round_s = min(_ROUND_S, profile_effort())  # shorter in rough profiles only
    while time.perf_counter() - begin_s < round_s:
        if chatter is not None:
            chatter.exchange()
        work()
        count += 1
    total_s = time.perf_counter() - begin_s
    return total_s / count, total_s


class _Chatter:
    """Messages in flight while something is computed. As in a pipeline, nobody waits for the newest ones."""

    def __init__(self, store: ObjectStore, num_bytes: int) -> None:
        self.num_ends = 0
        self._group = EchoGroup(store)
        self._message = torch.zeros(num_bytes, dtype=torch.uint8)
        self._last_s = 0.0
        self._in_flight: deque[list[dist.Work]] = deque()

    def __enter__(self) -> "_Chatter":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._finish(0)
        self._group.close()

    def exchange(self) -> None:
        """Send and receive one more message, unless the last one has just begun."""
        now_s = time.perf_counter()
        if now_s - self._last_s < _PAUSE_S:
            return
        self._last_s = now_s
        self._finish(_NUM_IN_FLIGHT - 1)
        self._in_flight.append(self._group.begin(self._message, torch.empty_like(self._message)))
        self.num_ends += 2

    def _finish(self, num_left: int) -> None:
        while len(self._in_flight) > num_left:
            for work in self._in_flight.popleft():
                work.wait()
