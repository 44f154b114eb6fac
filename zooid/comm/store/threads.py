"""Threads that are started when they are needed, and joined before the interpreter exits.

They are daemons: a request that hangs must not keep a process from ending.
"""

import threading
import time
from collections.abc import Callable


class Threads:
    """A limited number of threads that do the same work. `start` is called by one thread at a time."""

    def __init__(self, name: str, work: Callable[[], None], max_threads: int) -> None:
        self._name = name
        self._work = work
        self._max_threads = max_threads
        self._threads: list[threading.Thread] = []

    def start(self) -> bool:
        """Start one more thread, or return False at the limit."""
        if len(self._threads) == self._max_threads:
            return False
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def join(self, deadline_s: float) -> None:
        """Wait for all threads, which the caller has told to end."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
