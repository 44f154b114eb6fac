"""Retries of failed requests with backoff, and warnings during an outage; every operation may be repeated."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from zooid.core import environment
from zooid.core.abort import Abort
from zooid.core.errors import StoreUnavailable
from zooid.store.store_protocol import Data, Keys, ObjectStore

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_FIRST_PAUSE_S = 0.02
_MAX_PAUSE_S = 2.0
_RANDOM = random.SystemRandom()
"""A generator of its own: drawing from Python's global one would change the random numbers of a job."""

_QUIET_FRACTION = 1 / 24
"""Fraction of the patience that passes before the first warning: 5 of 120 seconds."""
_REPEAT_FRACTION = 1 / 8
"""Fraction of the patience that passes between two warnings: 15 of 120 seconds."""
_MAX_CHARACTERS = 200
"""The largest number of characters of an error that a warning quotes."""


class RetryingStore:
    """Another store, whose requests are retried until one succeeds, `give_up_s` have passed, or `abort` is set.

    The default of `give_up_s` is the patience that all programs of a run have in common. The backoff is random, so that
    members that failed together do not retry together. Wrapping a RetryingStore replaces its patience.
    """

    def __init__(
        self,
        inner: ObjectStore,
        abort: Abort | None = None,
        *,
        give_up_s: float | None = None,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        self.url = inner.url
        self.outage: Outage = inner.outage if isinstance(inner, RetryingStore) else Outage(inner.url)
        self._inner = without_patience(inner)
        self._abort = abort or Abort()
        self._give_up_s = environment.store_patience_s() if give_up_s is None else give_up_s
        self._on_retry = on_retry

    def shorten(self, give_up_s: float) -> None:
        """Give up sooner from now on, also in a call that is being retried."""
        self._give_up_s = min(self._give_up_s, give_up_s)

    def put(self, key: str, data: Data) -> None:
        self._retry(lambda: self._inner.put(key, data))

    def create(self, key: str, data: Data) -> None:
        self._retry(lambda: self._inner.create(key, data))

    def get(self, key: str) -> memoryview:
        return self._retry(lambda: self._inner.get(key))

    def stream(self, key: str) -> Iterator[Data]:
        """Stream an object without retries, since pieces that were consumed cannot be taken back."""
        return self._inner.stream(key)

    def list(self, prefix: str, after: str = "") -> Keys:
        return self._retry(lambda: self._inner.list(prefix, after))

    def list_folders(self, prefix: str) -> Keys:
        return self._retry(lambda: self._inner.list_folders(prefix))

    def is_empty(self) -> bool:
        return self._retry(self._inner.is_empty)

    def stored_bytes(self, prefix: str) -> int:
        return self._retry(lambda: self._inner.stored_bytes(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        self._retry(lambda: self._inner.delete(doomed))

    def _retry(self, action: Callable[[], Result]) -> Result:
        began_s = time.monotonic()
        asked_s = began_s
        pause_s = _FIRST_PAUSE_S
        while True:
            self._abort.check()
            try:
                result = action()
            except StoreUnavailable as error:
                self.outage.failed(asked_s, error, self._give_up_s)
                if time.monotonic() - began_s + pause_s > self._give_up_s:
                    raise
            except Exception:
                self.outage.answered()  # any other error is an answer of the store
                raise
            else:
                self.outage.answered()
                return result
            self._on_retry()
            self._abort.sleep(_RANDOM.uniform(pause_s / 2, pause_s))
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            asked_s = time.monotonic()


def without_patience(store: ObjectStore) -> ObjectStore:
    """The store inside a RetryingStore, for callers with their own retries; any other store unchanged."""
    return store._inner if isinstance(store, RetryingStore) else store


def outage_of(store: ObjectStore) -> "Outage":
    """The outage of a store, which all users of a RetryingStore have in common."""
    return store.outage if isinstance(store, RetryingStore) else Outage(store.url)


class Outage:
    """Logs when a store does not answer, once for all threads of a process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._said_s: float | None = None

    def failed(self, asked_s: float, error: StoreUnavailable, patience_s: float) -> None:
        """Record that a request has failed, which began at `asked_s` on the monotonic clock."""
        now_s = time.monotonic()
        with self._lock:
            self._since_s = asked_s if self._since_s is None else self._since_s
            fraction, last_s = (_REPEAT_FRACTION, self._said_s)
            if last_s is None:
                fraction, last_s = _QUIET_FRACTION, self._since_s
            if now_s - last_s < fraction * patience_s:
                return
            self._said_s = now_s
            silent_s = now_s - self._since_s
        logger.warning(
            "the store at %s has not answered for %.0f s (%s); retrying for up to %.0f s",
            self._url,
            silent_s,
            str(error).rpartition(" - ")[2].strip(" :")[:_MAX_CHARACTERS],  # the reason is its last part
            patience_s,
        )

    def answered(self) -> None:
        """Record that the store has answered."""
        if self._since_s is None:  # without the lock, since this runs after every request
            return
        with self._lock:
            since_s, said_s = self._since_s, self._said_s
            self._since_s = self._said_s = None
        if since_s is not None and said_s is not None:
            logger.warning("the store at %s answers again after %.0f s", self._url, time.monotonic() - since_s)
