"""Handles of calls in flight, as torch.distributed returns them."""

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import Work

from zooid.comm.transport_protocol import after_all
from zooid.core.errors import CommTimeout


class Completion:
    """An event that occurs once, with or without an error, and wakes its waiters with the least delay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        self.is_done = False
        self._callbacks: list[Callable[[], object]] = []
        self.error: BaseException | None = None
        self.made_s = time.perf_counter()
        self.began_s: float | None = None
        """Time at which the first bytes of a receive arrived."""
        self.ended_s: float | None = None

    def end(self, error: BaseException | None = None) -> bool:
        """End it, and return False where it had already ended."""
        with self._lock:
            if self.is_done:
                return False
            self.error = error
            self.ended_s = time.perf_counter()
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
        if error is None:
            self._gate.release()
        for callback in callbacks:
            callback()
        if error is not None:  # a waiter may end the process, so the peers are told first
            self._gate.release()
        return True

    def then(self, callback: Callable[[], object]) -> None:
        """Call back when it ends, or at once if it has."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, and return whether it came in time."""
        if not self._gate.locked():
            return True
        arrived = self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
        if arrived:
            self._gate.release()
        return arrived


class TransferWork(Work):
    """The handle of one call. Failed transfers raise at `wait`, in the caller's thread."""

    def __init__(self, done: Completion, result: Sequence[torch.Tensor], name: str) -> None:
        super().__init__()
        self.done = done
        self._result = list(result)
        self.name = name
        self._future: torch.futures.Future[Any] | None = None
        self._last: torch.futures.Future[Any] | None = None
        self.sources: list[int] = []
        """The rank that sent, once a receive knows it."""

    @property
    def num_bytes(self) -> int:
        """Size of the tensors that the call sends, receives or sums."""
        return sum(tensor.nbytes for tensor in self._result)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        # torch passes a timeout of zero for "no timeout of its own"; the group's timeout holds anyway.
        limit_s = timeout.total_seconds() if timeout else 0.0
        if not self.done.wait(limit_s if limit_s > 0 else None):
            raise CommTimeout(f"{self.name} was not finished within {limit_s:g} s")
        if self.done.error is not None:
            raise self.done.error
        if self._last is not None:
            self._last.wait()
        self.synchronize()
        return True

    def is_completed(self) -> bool:
        return self.done.is_done

    def is_success(self) -> bool:
        return self.done.is_done and self.done.error is None

    def exception(self) -> BaseException | None:
        return self.done.error if self.done.is_done else None

    def source_rank(self) -> int:
        return self.sources[0] if self.sources else -1

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Let the caller's CUDA stream see the result; results in CPU memory need nothing."""

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            future = self._future = self._new_future()
            self.done.then(lambda: self.settle(future))
        return self._future

    def end_with(self, future: torch.futures.Future[Any]) -> None:
        """Let callers get this future and wait for it; it completes after the call itself."""
        self._future = self._last = future

    def _new_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()

    def settle(self, future: torch.futures.Future[Any]) -> None:
        if self.done.error is None:
            future.set_result(self._result)
        elif isinstance(self.done.error, Exception):
            future.set_exception(self.done.error)


class JoinedWork(TransferWork):
    """Several calls as one, which is done when all of them are."""

    def __init__(self, works: Sequence[TransferWork], result: Sequence[torch.Tensor]) -> None:
        done = Completion()
        super().__init__(done, result, " and ".join(sorted({work.name for work in works})))
        self._works = works
        one_done = after_all(len(works), done.end)
        for work in works:
            work.done.then(lambda work=work: one_done(work.done.error))  # type: ignore[misc]
        if not works:
            done.end()

    def synchronize(self) -> None:
        for work in self._works:
            work.synchronize()
