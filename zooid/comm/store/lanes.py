"""A few threads that work through a queue by priority, with a limit on the bytes that are on their way at once."""

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

from zooid.comm.store.threads import Threads
from zooid.schedule.transfer_lists import FlightWindow

logger = logging.getLogger(__name__)


class Lane:
    """Runs actions in the order of their priorities."""

    def __init__(self, name: str, *, max_threads: int, window: FlightWindow) -> None:
        self._name = name
        self._window = window
        self._changed = threading.Condition()
        self._queue: list[tuple[Any, int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._threads = Threads(name, self._work, max_threads)
        self._num_idle = 0
        self._num_active = 0
        self._active_bytes = 0
        self._is_closed = False

    def submit(self, priority: Any, num_bytes: int, action: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closed:
                return
            heapq.heappush(self._queue, (priority, next(self._order), num_bytes, action))
            if self._num_idle >= len(self._queue) or not self._threads.start():
                self._changed.notify()

    def close(self) -> None:
        """Start nothing any more; what is under way ends by itself."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()

    def join(self, deadline_s: float) -> None:
        """Wait for the threads of a closed lane."""
        self._threads.join(deadline_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or under way."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._num_active == 0, timeout_s)

    def _may_start(self) -> bool:
        if not self._queue:
            return False
        return self._window.admits(self._num_active, self._active_bytes, self._queue[0][2])

    def _work(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                self._changed.wait_for(lambda: self._is_closed or self._may_start())
                self._num_idle -= 1
                if self._is_closed:
                    return
                _, _, num_bytes, action = heapq.heappop(self._queue)
                self._num_active += 1
                self._active_bytes += num_bytes
            try:
                action()
            except Exception:
                logger.exception("an action of %s failed", self._name)
            finally:
                with self._changed:
                    self._num_active -= 1
                    self._active_bytes -= num_bytes
                    self._changed.notify_all()
            del action  # while it waits for the next one, the thread must not keep this one's tensor alive
