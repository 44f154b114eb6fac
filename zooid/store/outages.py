"""What is said while a store does not answer, so that nobody wonders why a run stands still."""

import logging
import threading
import time

from zooid.core.errors import StoreUnavailable

logger = logging.getLogger(__name__)

_QUIET_SHARE = 1 / 24
"""Share of the patience that passes before the first line: 5 of 120 seconds. Shorter outages are not worth one."""
_REPEAT_SHARE = 1 / 8
"""Share of it that passes between two lines: 15 of 120 seconds."""
_MOST_CHARACTERS = 200
"""The most characters of a store's own error that one line repeats."""


class Outage:
    """Follows one store through all threads of a process, and logs one line at a time about it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._said_s: float | None = None

    def failed(self, asked_s: float, error: StoreUnavailable, patience_s: float) -> None:
        """Note that a request which began at this time, on the monotonic clock, has failed."""
        now_s = time.monotonic()
        with self._lock:
            self._since_s = asked_s if self._since_s is None else self._since_s
            share, last_s = (_QUIET_SHARE, self._since_s) if self._said_s is None else (_REPEAT_SHARE, self._said_s)
            if now_s - last_s < share * patience_s:
                return
            self._said_s = now_s
            silent_s = now_s - self._since_s
        logger.warning(
            "the store at %s has not answered for %.0f s (%s); asking again for up to %.0f s",
            self._url,
            silent_s,
            str(error).rpartition(" - ")[2].strip(" :")[:_MOST_CHARACTERS],  # the client's words end with the reason
            patience_s,
        )

    def answered(self) -> None:
        """Note that the store answers."""
        if self._since_s is None:  # without the lock, since this comes after every request
            return
        with self._lock:
            since_s, said_s = self._since_s, self._said_s
            self._since_s = self._said_s = None
        if since_s is not None and said_s is not None:
            logger.warning("the store at %s answers again after %.0f s", self._url, time.monotonic() - since_s)
