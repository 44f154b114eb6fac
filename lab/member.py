"""One member of a crew: joins groups, times their all-reduces, and measures its link to a store.

`python -m lab.member RANK WORLD_SIZE`, started by `lab.crew`. One thread computes, as in every
member of zooid.
"""

import ctypes
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

import zooid.comm
from lab.crew import Answer, serve, wait_until
from lab.pupil import meet_in_store, train_together
from zooid.store import open_store

_TIMEOUT = timedelta(seconds=120)
_ITEM_BYTES = 4
_PERIOD = 1009
"""Numbers repeat after so many: a prime, so that no two splits or chunks look alike."""
_NUM_STREAMS = 3
"""Requests each way at a time while a link is measured: some move bytes while another begins."""
_NUM_LATENCIES = 15
_TINY = b"tiny"

_groups: dict[str, dist.ProcessGroup] = {}
_numbers = torch.empty(0)


def join(url: str) -> None:
    """Become a rank of the default group, which the others are made from."""
    rank, world_size = map(int, sys.argv[1:])
    dist.init_process_group("zooid", init_method=url, rank=rank, world_size=world_size, timeout=_TIMEOUT)


def add_group(name: str, backend: str, **options: str) -> None:
    """A group of everybody, under a name that later tasks use."""
    pg_options = zooid.comm.Options(**options) if backend == "zooid" else None  # type: ignore[arg-type]
    _groups[name] = dist.new_group(backend=backend, timeout=_TIMEOUT, pg_options=pg_options)


def fill(num_bytes: int) -> None:
    """Make the numbers of the next all-reduce; not in its own time, and no two ranks have the same."""
    global _numbers
    _numbers = _pattern(num_bytes // _ITEM_BYTES).add_(dist.get_rank())


def all_reduce(group: str, num_times: int, start_s: float) -> Answer:
    """All-reduce the numbers so many times in a row, from the common start on, and check every sum."""
    chosen = _groups[group]
    before = _counts(chosen)
    with _peak_memory() as peak:
        wait_until(start_s)
        begin_s = time.monotonic()
        for _ in range(num_times):
            dist.all_reduce(_numbers, group=chosen)
        end_s = time.monotonic()
    counts = {name: value - before[name] for name, value in _counts(chosen).items()}
    _check_sums(group, num_times)
    return {"begin_s": begin_s, "end_s": end_s, "peak_extra_bytes": peak.extra_bytes, "counts": counts}


def _check_sums(group: str, num_times: int) -> None:
    """Sums of whole numbers, which later rounds multiply by the number of ranks, a power of two: they are exact."""
    size = dist.get_world_size()
    expected = _pattern(len(_numbers)).mul_(size).add_(size * (size - 1) // 2).mul_(float(size) ** (num_times - 1))
    if not torch.equal(_numbers, expected):
        num_wrong = int((_numbers != expected).sum())
        raise ArithmeticError(f"{num_wrong} of {len(_numbers)} sums of {group} are wrong on rank {dist.get_rank()}")


def _pattern(num_items: int) -> torch.Tensor:
    return (torch.arange(num_items, dtype=torch.int32) % _PERIOD).float()


def _counts(group: dist.ProcessGroup) -> dict[str, float]:
    return asdict(zooid.comm.statistics(group)) if dist.get_backend(group) == "zooid" else {}


def put_object(url: str, num_bytes: int) -> None:
    """Give the link something to get."""
    open_store(url).put(_own_key("filling"), os.urandom(num_bytes))


def goodput(url: str, num_bytes: int, duration_s: float, latency_s: float, start_s: float) -> Answer:
    """What the link carries each way while both are busy: objects through the store's own client.

    One latency is not counted: the first bytes come, or the last answer comes, so much later than the link is busy.
    """
    store = open_store(url)
    data = os.urandom(num_bytes)

    def put(stream: int) -> None:
        store.put(_own_key(f"goodput-{stream}"), data)

    def get(_: int) -> None:
        store.get(_own_key("filling"))

    ways = [_Way(move, start_s + latency_s, start_s + duration_s) for move in (put, get)]
    wait_until(start_s)
    for way in ways:
        way.begin()
    up_bytes_per_s, down_bytes_per_s = (way.end() * num_bytes for way in ways)
    return {"up_bytes_per_s": up_bytes_per_s, "down_bytes_per_s": down_bytes_per_s}


def latency(url: str) -> Answer:
    """Median time of a small request: of puts and of gets, and the mean of both."""
    store = open_store(url)
    key = _own_key("latency")
    store.put(key, _TINY)
    put_s = statistics.median(_time_s(lambda: store.put(key, _TINY)) for _ in range(_NUM_LATENCIES))
    get_s = statistics.median(_time_s(lambda: store.get(key)) for _ in range(_NUM_LATENCIES))
    return {"latency_s": (put_s + get_s) / 2}


class _Way:
    """Moves objects one way until time is up, several at once."""

    def __init__(self, move: Callable[[int], None], busy_from_s: float, stop_s: float) -> None:
        self._move = move
        self._busy_from_s = busy_from_s
        self._stop_s = stop_s
        self._ends_s: list[float] = []
        self._threads = [threading.Thread(target=self._run, args=(stream,)) for stream in range(_NUM_STREAMS)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> float:
        """Objects per second."""
        for thread in self._threads:
            thread.join()
        return len(self._ends_s) / (max(self._ends_s) - self._busy_from_s)

    def _run(self, stream: int) -> None:
        while time.monotonic() < self._stop_s:
            self._move(stream)
            self._ends_s.append(time.monotonic())


class _Peak:
    extra_bytes = 0


@contextmanager
def _peak_memory() -> Iterator[_Peak]:
    """By how much resident memory rose at most over what it was at the beginning.

    What was freed before is given back to the system first; otherwise its reuse would not be seen.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the highest resident memory
    before_bytes = _status_bytes("VmRSS")
    peak = _Peak()
    yield peak
    peak.extra_bytes = _status_bytes("VmHWM") - before_bytes


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _time_s(action: Callable[[], object]) -> float:
    begin_s = time.monotonic()
    action()
    return time.monotonic() - begin_s


def _own_key(name: str) -> str:
    return f"links/{name}-{os.getpid()}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    tasks = (join, add_group, fill, all_reduce, put_object, goodput, latency, meet_in_store, train_together)
    serve({task.__name__: task for task in tasks})
