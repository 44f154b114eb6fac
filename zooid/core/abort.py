"""A flag that frees every wait: whoever waits, waits on it too."""

import threading
import time

from zooid.core.errors import CommAborted


class Abort:
    """Set once, by any thread; every wait that was given this flag then raises CommAborted with the reason."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason = ""

    def set(self, reason: str) -> None:
        """Free all waits; the first reason stays."""
        if not self._event.is_set():
            self._reason = reason
            self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise if the flag is set; called between any two actions."""
        if self._event.is_set():
            raise CommAborted(self._reason)

    def sleep(self, seconds: float) -> None:
        """Sleep, but raise as soon as the flag is set."""
        if seconds < 0.002:  # waking through a condition variable costs more than such a sleep
            time.sleep(max(0.0, seconds))
        else:
            self._event.wait(seconds)
        self.check()
