"""Passes on what members report, without asking the store too often."""

import time
from collections.abc import Callable

from zooid.core.events import Event
from zooid.store import EventReader, ObjectStore

OnEvent = Callable[[Event], None]

_LOCAL_INTERVAL_S = 0.1
_REMOTE_INTERVAL_S = 1.0
"""Every look is a request for each writer, which costs money."""


class Relay:
    """Calls back for every event of a run, in the caller's thread."""

    def __init__(self, store: ObjectStore, on_event: OnEvent) -> None:
        self._reader = EventReader(store)
        self._on_event = on_event
        self._interval_s = _LOCAL_INTERVAL_S if store.url.startswith("file://") else _REMOTE_INTERVAL_S
        self._last_s = 0.0

    def poll(self) -> None:
        """Look, unless the last look was a moment ago."""
        if time.monotonic() - self._last_s >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Pass on everything that is there."""
        for event in self._reader.read_new():
            self._on_event(event)
        self._last_s = time.monotonic()
