"""Threads that are started when they are needed, and joined before the interpreter exits.

They are daemons: a request that hangs must not keep a process from ending.
"""

import threading
import time
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Threads(Generic[Item]):
    """A limited number of threads that work on one queue."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._queue: list[Item] = []
        self._num_idle = 0
        self._num_active = 0
        self._active_bytes = 0
        self._is_closed = False

    def close(self) -> None:
        """Start no more requests; those in flight end by themselves."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()

    def join(self, deadline_s: float) -> None:
        """Wait for all threads of a closed queue."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _start_thread(self) -> bool:
        """Start one more thread, or return False at the limit. The lock is held."""
        if len(self._threads) == self._max_threads:
            return False
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def _work(self) -> None:
        """Work on the queue until it is closed."""
        raise NotImplementedError
