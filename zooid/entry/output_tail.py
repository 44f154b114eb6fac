"""The end of a member's output, of which the store has a copy."""

import logging
import threading
import time

from zooid.core.errors import StoreError
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)

_TAIL_BYTES = 64 * 1024
_MIN_COPY_S, _MAX_COPY_S = 0.5, 10.0
"""Shortest and longest time between two copies. Every copy is a request, and costs money."""
_COPY_FRACTION = 0.1
"""Time between two copies as a fraction of the time since the start: early output is the most interesting."""


class OutputTail:
    """Keeps the last bytes that a member has printed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data = b""
        self._num_bytes = 0

    def add(self, data: bytes) -> None:
        with self._lock:
            self._data = (self._data + data)[-_TAIL_BYTES:]
            self._num_bytes += len(data)

    def read(self) -> tuple[bytes, int]:
        """Return the last bytes, and the number of all bytes so far."""
        with self._lock:
            return self._data, self._num_bytes


class TailCopies:
    """Copies a tail to the store from time to time, in a thread, and once more at the end."""

    def __init__(self, tail: OutputTail, store: ObjectStore, key: str) -> None:
        self._tail = tail
        self._store = store
        self._key = key
        self._ending = threading.Event()
        self._num_copied = 0
        self._thread = threading.Thread(target=self._run, name="output-tail", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Copy what is new, and stop."""
        self._ending.set()
        self._thread.join()
        self._copy()

    def _run(self) -> None:
        began_s = time.monotonic()
        pause_s = _MIN_COPY_S
        while not self._ending.wait(pause_s):
            self._copy()
            pause_s = min(_MAX_COPY_S, max(_MIN_COPY_S, _COPY_FRACTION * (time.monotonic() - began_s)))

    def _copy(self) -> None:
        data, num_bytes = self._tail.read()
        if num_bytes == self._num_copied:
            return
        try:
            self._store.put(self._key, data)
            self._num_copied = num_bytes
        except StoreError as error:
            logger.warning("the end of the member's output could not be stored: %s", error)
