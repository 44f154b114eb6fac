"""Reads the samples of grains: when a forward needs them, or ahead of it in other processes."""

import contextlib
import ctypes
import functools
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from zooid.core.errors import TrainingError, ZooidError
from zooid.core.jobs.job import Job
from zooid.layers import Batch, collate, seed_data
from zooid.schedule.shard_order import ShardsAhead

Grain: TypeAlias = tuple[int, int, Sequence[int]]
"""A step, the number of a grain in it, and the grain's samples."""
SamplesOf: TypeAlias = Callable[[int, int], Sequence[int]]
"""(step, grain) -> the grain's samples, as far as is known now."""
ReadGrain: TypeAlias = Callable[[int, int], Batch]
"""(step, grain) -> the grain's samples."""

_PREFETCH_FACTOR = 2
"""Number of grains that a process reads ahead: it reads one while another waits to be taken."""
_ENDING_S = 1.0
"""Time within which a killed process is gone."""
_PR_SET_PDEATHSIG = 1


class GrainReader:
    """Reads grains in the order in which a member will ask for them.

    The order may change at any time: with the shares of members, with the batch size, or when a step is run again. So
    what was read ahead is used only if it is what is asked for, down to the samples; otherwise it is read anew.

    Every grain has its own random numbers, so its batch does not depend on who reads it. Processes are forked in the
    constructor. Call it before you open anything that they must not inherit, such as connections to other members.
    """

    def __init__(
        self,
        job: Job,
        data: Any,
        upcoming: Callable[[int], Iterable[Grain]],
        samples_of: SamplesOf,
        *,
        num_workers: int,
        pin: bool = False,
    ) -> None:
        """`upcoming(step)` yields the grains from that step on; `pin` pins the memory of batches for a GPU."""
        self._data = data
        self._job = job
        self._upcoming = upcoming
        self._samples_of = samples_of
        self._pin = pin
        self._is_sharded = is_sharded(data)
        self._announced = _Given(())
        self._ahead = ShardsAhead((), ())
        self._processes = _Processes(job, data, num_workers, pin) if num_workers else None

    def read(self, step: int, grain: int) -> Batch:
        """Read a grain, and ahead what comes after it."""
        wanted = (step, grain, self._samples_of(step, grain))
        if self._is_sharded:
            self._announce(wanted)
        if self._processes is None:
            batch = read_grain(self._job, self._data, wanted)
            return batch.pin_memory() if self._pin else batch
        batch = self._processes.take(wanted, self._from(step, grain))
        # So that other random numbers, such as those of a loss, depend on the grain alone, as if it were read here.
        seed_data(self._job.seed, step, grain)
        return batch

    def close(self) -> None:
        """End all processes, including those that fetch shards."""
        if self._processes is not None:
            self._processes.close()
        if self._is_sharded:
            self._data.close()

    def _announce(self, wanted: Grain) -> None:
        """Have the shards fetched that this grain and those after it need."""
        shards = self._ahead.read()
        if self._announced.next() != wanted:
            self._announced = _Given(self._from(*wanted[:2]))
            self._ahead = ShardsAhead(self._data.shard_sizes, (samples for _, _, samples in self._announced))
            shards = self._ahead.read()
            self._announced.next()
        if shards:
            self._data.prefetch(shards)

    def _from(self, step: int, grain: int) -> Iterator[Grain]:
        grains = iter(self._upcoming(step))
        for upcoming in grains:
            if upcoming[0] != step:
                break
            if upcoming[1] == grain:
                yield upcoming
                yield from grains
                return
        raise AssertionError(f"grain {grain} of step {step} is not among those that this member was to read")


def is_sharded(data: Any) -> bool:
    """Whether a data set fetches shards, and can be told to fetch them ahead, as those of zooid.shards."""
    return bool(getattr(data, "shard_sizes", ())) and hasattr(data, "prefetch") and hasattr(data, "close")


def read_grain(job: Job, data: Any, grain: Grain) -> Batch:
    """Read one grain, with its own random numbers."""
    step, number, indices = grain
    seed_data(job.seed, step, number)
    return collate(data, indices, job)


class _Given:
    """Grains that were given to somebody who works ahead, as they were then."""

    def __init__(self, grains: Iterable[Grain]) -> None:
        self._grains = iter(grains)
        self._given: deque[Grain] = deque()

    def __iter__(self) -> Iterator[Grain]:
        for grain in self._grains:
            self._given.append(grain)
            yield grain

    def next(self) -> Grain | None:
        """Remove and return the first grain that was given; None if there is none."""
        return self._given.popleft() if self._given else None


class _Processes:
    """A DataLoader whose items are whole grains. It lives as long as the run, and can restart at any grain."""

    def __init__(self, job: Job, data: Any, num_workers: int, pin: bool) -> None:
        self._grains = _Upcoming()
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._loader = DataLoader(
            _Grains(job, data),
            sampler=self._grains,
            batch_size=None,
            collate_fn=lambda grain: grain,
            num_workers=num_workers,
            prefetch_factor=_PREFETCH_FACTOR,
            persistent_workers=True,
            pin_memory=pin,
            multiprocessing_context="fork",
            # The kernel ends them with the thread that forked them, so only a lasting thread may ask for it.
            worker_init_fn=functools.partial(_begin, ends_with_thread=in_main_thread),
            generator=torch.Generator(),
        )
        with _own_child_handler(None), warnings.catch_warnings():
            # A process with threads is forked: these children only read samples, and use nothing of the threads.
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            self._results: Any = iter(self._loader)

    def take(self, wanted: Grain, from_wanted: Iterator[Grain]) -> Batch:
        """Wait for a grain, and return it.

        If another one was to be read next, drop what was read ahead, and read `from_wanted` from now on.
        """
        is_next = self._grains.given.next() == wanted
        with self._watched():
            if not is_next:
                self._grains.given = _Given(from_wanted)
                self._results = iter(self._loader)
                self._grains.given.next()
            result = next(self._results)
        if isinstance(result, _Failure):
            error = result.kind(result.message)
            error.add_note(f"In a process that reads samples ahead:\n{result.traceback_text}")
            raise error
        assert isinstance(result, Batch)
        return result

    def close(self) -> None:
        if self._ended():
            # A process that was killed may hold the lock of the event by which a DataLoader ends the others: nobody
            # could ever set it.
            for process in self._results._workers:
                process.kill()
            self._results._workers_done_event = threading.Event()
        self._results._shutdown_workers()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise at once when a process has ended, but only inside this context."""
        try:
            with _own_child_handler(self._check):
                self._check()
                yield
        except (RuntimeError, OSError, EOFError):
            # A connection to a process that is ending may break before the kernel says that it has ended.
            for sentinel in connection.wait([process.sentinel for process in self._results._workers], _ENDING_S):
                next(p for p in self._results._workers if p.sentinel == sentinel).join(_ENDING_S)
            self._check()
            raise

    def _ended(self) -> list[Any]:
        return [process for process in self._results._workers if not process.is_alive()]

    def _check(self) -> None:
        if not (ended := self._ended()):
            return
        code = ended[0].exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        raise TrainingError(
            f"a process that reads samples ahead (process {ended[0].pid}) {how}; where the machine has run out of "
            "memory, lower job.data_workers or the size of samples; otherwise look at what job.data() does"
        )


class _Grains(Dataset[Any]):
    """Whole grains as the items of a data set."""

    def __init__(self, job: Job, data: Any) -> None:
        self.data = data
        self._job = job

    def __getitem__(self, grain: Grain) -> "Batch | _Failure":
        try:
            return read_grain(self._job, self.data, grain)
        except ZooidError as error:  # raised through the DataLoader, its message would be a traceback
            return _Failure(type(error), str(error), traceback.format_exc())


class _Upcoming(Sampler[Grain]):
    """The grains to read, in order; none at first."""

    def __init__(self) -> None:
        self.given = _Given(())

    def __iter__(self) -> Iterator[Grain]:
        return iter(self.given)


@dataclass(frozen=True)
class _Failure:
    kind: type[ZooidError]
    message: str
    traceback_text: str


@contextlib.contextmanager
def _own_child_handler(check: Callable[[], None] | None) -> Iterator[None]:
    """Call `check` when a child ends, instead of any other handler, and restore that handler in the end.

    A DataLoader installs a handler that raises in the middle of whatever the main thread is doing when a process ends.
    Only the main thread can set handlers, so other threads keep them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)

    def handle(signum: int, frame: FrameType | None) -> None:
        if check is not None:
            check()

    signal.signal(signal.SIGCHLD, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def _begin(number: int, *, ends_with_thread: bool) -> None:
    """Make sure that neither this new process nor its children outlive the member."""
    if ends_with_thread:  # an inherited connection of a killed member would stay open
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, _Grains)
    if is_sharded(info.dataset.data):
        Finalize(None, info.dataset.data.close, exitpriority=0)
