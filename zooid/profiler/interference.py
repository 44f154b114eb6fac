"""How much messages slow computing down: the processor time they take from it (FuncPipe's β, Appendix B).

A member's transfers and its layers share cores, caches and the interpreter. The same computation is timed with and
without messages going on beside it, both times with all cores at work; what it loses, it loses to the messages.
"""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from zooid.comm.echo import StoreProbe
from zooid.core.environment import profile_effort, rough_repeats
from zooid.profiler.layer_times import median_is_known
from zooid.profiler.shared_load import busy_neighbours
from zooid.store import ObjectStore

_SMALL_BYTES = 4 * 2**10
_LARGE_BYTES = 2**20
_PAUSE_S = 0.005
"""Between two messages, about as often as a pipeline of small grains sends them."""
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 8
_ROUND_S = 0.1
_ENOUGH = 0.1
"""Rounds end when the cost is known to this part of itself: it is a small part of a step, so that this is plenty."""


@dataclass(frozen=True)
class MessageCost:
    """Processor time of one end of a message: cpu_s + bytes × cpu_s_per_byte."""

    cpu_s: float
    cpu_s_per_byte: float


def measure_message_cost(work: Callable[[], None], store: ObjectStore, num_neighbours: int) -> MessageCost:
    """What sending or receiving takes from `work`, on cores that are all busy."""
    with busy_neighbours(num_neighbours, work):
        small_s = _cost_s(work, store, _SMALL_BYTES, num_neighbours + 1)
        large_s = _cost_s(work, store, _LARGE_BYTES, num_neighbours + 1)
    per_byte = max(0.0, large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES)
    return MessageCost(cpu_s=small_s, cpu_s_per_byte=per_byte)


def _cost_s(work: Callable[[], None], store: ObjectStore, num_bytes: int, num_cores: int) -> float:
    """Per end of a message: the seconds lost, times the cores that share the loss. Quiet and busy rounds alternate."""
    costs: list[float] = []
    for _ in range(rough_repeats(_MOST_ROUNDS)):
        if len(costs) >= _LEAST_ROUNDS and median_is_known(costs, _ENOUGH):
            break
        quiet_s, _ = _pace(work, None)
        with _Chatter(store, num_bytes) as chatter:
            busy_s, rounds_s = _pace(work, chatter)
        lost_s = (busy_s - quiet_s) / busy_s * rounds_s
        costs.append(lost_s * num_cores / max(1, chatter.num_ends))
    return max(0.0, statistics.median(costs))


def _pace(work: Callable[[], None], chatter: "_Chatter | None") -> tuple[float, float]:
    """Mean seconds of one piece of work, and the seconds of all of them."""
    if chatter is not None:
        chatter.num_ends = 0
    begin_s = time.perf_counter()
    count = 0
    round_s = min(_ROUND_S, profile_effort())  # shorter in rough profiles only
    while time.perf_counter() - begin_s < round_s:
        work()
        count += 1
    total_s = time.perf_counter() - begin_s
    return total_s / count, total_s


class _Chatter:
    """Two threads, as a member's lanes are: one sends a message now and then, the other waits for it and takes it."""

    def __init__(self, store: ObjectStore, num_bytes: int) -> None:
        self.num_ends = 0
        self._probe = StoreProbe(store)
        self._data = memoryview(bytearray(num_bytes))
        self._num_sent: int | None = None
        """How many messages there are in all, once that is known."""
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(2)
        self._lanes: list[Future[None]] = []

    def __enter__(self) -> "_Chatter":
        self._lanes = [self._threads.submit(lane) for lane in (self._send, self._receive)]
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stopping.set()
        for lane in self._lanes:
            lane.result()
        self._threads.shutdown()
        self._probe.close()

    def _send(self) -> None:
        number = 0
        while not self._stopping.wait(_PAUSE_S):
            self._probe.send(number, self._data)
            self.num_ends += 1
            number += 1
        self._num_sent = number + 1
        self._probe.send(number, self._data)

    def _receive(self) -> None:
        number = 0
        while number != self._num_sent:
            self._probe.receive(number, self._data.nbytes)
            self.num_ends += 1
            number += 1
