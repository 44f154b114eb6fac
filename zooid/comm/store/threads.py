"""Threads that are started when they are needed, and joined before the interpreter goes.

They are daemons: a request that hangs must not keep a process from ending.
"""

import threading
import time
from collections.abc import Callable


class Threads:
    """Up to so many threads that do the same work. `start` is called by one thread at a time."""

    def __init__(self, name: str, work: Callable[[], None], max_threads: int) -> None:
        self._name = name
        self._work = work
        self._max_threads = max_threads
        self._threads: list[threading.Thread] = []

    def start(self) -> bool:
        """Start one more; False where there are as many as may be."""
        if len(self._threads) == self._max_threads:
            return False
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    @property
    def num_alive(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def join(self, deadline_s: float) -> None:
        """Wait for all of them; whoever calls has told them to end."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
