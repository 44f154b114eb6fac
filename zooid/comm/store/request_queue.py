"""A priority queue of store requests, with a few threads and a limit on the bytes in flight."""

import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Any

from zooid.comm.store.threads import Threads
from zooid.schedule.transfer_lists import FlightWindow

logger = logging.getLogger(__name__)


class RequestQueue(Threads[tuple[Any, int, int, Callable[[], None]]]):
    """Runs requests in the order of their priorities.

    The queue is a heap of (priority, order of submission, bytes, request).
    """

    def __init__(self, name: str, *, max_threads: int, window: FlightWindow) -> None:
        super().__init__(name, max_threads)
        self._window = window
        self._order = itertools.count()

    def submit(self, priority: Any, num_bytes: int, request: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closed:
                return
            heapq.heappush(self._queue, (priority, next(self._order), num_bytes, request))
            if self._num_idle >= len(self._queue) or not self._start_thread():
                self._changed.notify()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in flight."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._num_active == 0, timeout_s)

    def _may_start(self) -> bool:
        return bool(self._queue) and self._window.admits(self._num_active, self._active_bytes, self._queue[0][2])

    def _work(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                self._changed.wait_for(lambda: self._is_closed or self._may_start())
                self._num_idle -= 1
                if self._is_closed:
                    return
                _, _, num_bytes, request = heapq.heappop(self._queue)
                self._num_active += 1
                self._active_bytes += num_bytes
            try:
                request()
            except Exception:
                logger.exception("a request of %s failed", self._name)
            finally:
                with self._changed:
                    self._num_active -= 1
                    self._active_bytes -= num_bytes
                    self._changed.notify_all()
            del request  # while it waits for the next one, the thread must not keep this one's tensor alive
