"""A flag that interrupts every wait."""

import threading
import time
from collections.abc import Callable

from zooid.core.errors import CommAborted


class Abort:
    """A flag that any thread sets once. Every wait that was given the flag then raises CommAborted with the reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._reason = ""
        self._callbacks: list[Callable[[str], None]] = []

    def set(self, reason: str) -> None:
        """Interrupt all waits; if the flag is set already, its first reason stays."""
        with self._lock:
            if self._event.is_set():
                return
            self._reason = reason
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(reason)

    def on_set(self, callback: Callable[[str], None]) -> None:
        """Call back with the reason in the thread that sets the flag; at once if it is set already."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback(self._reason)

    def forget(self, callback: Callable[[str], None]) -> None:
        """Remove a callback that was added with `on_set`."""
        with self._lock:
            self._callbacks = [kept for kept in self._callbacks if kept != callback]

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise CommAborted if the flag is set."""
        if self._event.is_set():
            raise CommAborted(self._reason)

    def sleep(self, seconds: float) -> None:
        """Sleep; raise CommAborted as soon as the flag is set."""
        if seconds < 0.002:  # waking through a condition variable costs more than such a sleep
            time.sleep(max(0.0, seconds))
        else:
            self._event.wait(seconds)
        self.check()
