"""Whether a measurement had the machine to itself."""

import contextlib
import hashlib
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zooid.core.runs.events import Event, StepCommitted

_YARDSTICK_ROUNDS = 7
_YARDSTICK_ITERATIONS = 100_000


class ForeignLoad:
    """Cores that this process and its descendants could not have while the context was open.

    Other processes kept them busy, or the host of a virtual machine gave them to its other guests.
    """

    def __init__(self) -> None:
        self.num_cores = 0.0

    def __enter__(self) -> "ForeignLoad":
        self._begin = (time.monotonic(), _busy_s(), _own_s())
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        wall_s, busy_s, own_s = (
            now - before for now, before in zip((time.monotonic(), _busy_s(), _own_s()), self._begin, strict=True)
        )
        self.num_cores = max(0.0, busy_s - own_s) / wall_s


def _busy_s() -> float:
    """Processor time of the whole machine since it started, without idling and waiting for disks."""
    user, nice, system, _, _, interrupt, soft_interrupt, stolen, *_ = (
        int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft_interrupt + stolen) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Processor time of this process and its descendants; that of an ended one is in its parent's figures."""
    parents: dict[int, int] = {}
    taken: dict[int, float] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            pid = int(file.parent.name)
            parents[pid] = int(fields[1])
            taken[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(taken_s for pid, taken_s in taken.items() if _is_descendant(pid, parents))


def _is_descendant(pid: int | None, parents: dict[int, int]) -> bool:
    while pid is not None and pid != os.getpid():
        pid = parents.get(pid)
    return pid is not None


def yardstick_s() -> float:
    """How long the machine takes now for a fixed piece of work on all its cores at once."""
    return statistics.median(_work_on_all_cores_s() for _ in range(_YARDSTICK_ROUNDS))


def _work_on_all_cores_s() -> float:
    num_cores = len(os.sched_getaffinity(0))
    begin_s = time.perf_counter()
    with ThreadPoolExecutor(num_cores) as pool:  # hashing lets other threads run
        list(pool.map(_hash_much, range(num_cores)))
    return time.perf_counter() - begin_s


def _hash_much(seed: int) -> bytes:
    """A fixed piece of work for one core, which takes some hundredths of a second."""
    return hashlib.pbkdf2_hmac("sha256", b"zooid", str(seed).encode(), _YARDSTICK_ITERATIONS)


class Busy:
    """The share of all cores that were at work between the first note and the last."""

    def __init__(self) -> None:
        self._begin: tuple[float, float] | None = None
        self._end: tuple[float, float] | None = None

    def on_event(self, event: Event) -> None:
        """Notes every step that a run commits."""
        if isinstance(event, StepCommitted):
            self.note()

    def note(self) -> None:
        now = (time.monotonic(), _busy_s())
        self._begin = self._begin or now
        self._end = now

    @property
    def share(self) -> float:
        if self._begin is None or self._end is None or self._end[0] == self._begin[0]:
            return 0.0
        cores = os.cpu_count() or 1
        return (self._end[1] - self._begin[1]) / (self._end[0] - self._begin[0]) / cores
