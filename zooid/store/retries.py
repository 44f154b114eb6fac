"""A store that is asked again when it fails: every operation may be repeated without harm."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from zooid.core import environment
from zooid.core.abort import Abort
from zooid.core.errors import StoreUnavailable
from zooid.store.outages import Outage
from zooid.store.store_protocol import Data, Keys, ObjectStore

Result = TypeVar("Result")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_DICE = random.SystemRandom()
"""Not Python's own generator: a job may draw from that meanwhile, and would draw other numbers. Forked processes do not
share it either."""


class RetryingStore:
    """Another store, asked again with growing pauses until it answers, `give_up_s` have passed, or `abort` is set.

    Without `give_up_s`, the patience is the one that all programs of a run have in common. Pauses are drawn at random,
    so that members who failed together do not come back together. Wrapping a RetryingStore replaces its patience.
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
        """Give up sooner from now on, also where a call is being repeated at present."""
        self._give_up_s = min(self._give_up_s, give_up_s)

    def put(self, key: str, data: Data) -> None:
        self._retry(lambda: self._inner.put(key, data))

    def create(self, key: str, data: Data) -> None:
        self._retry(lambda: self._inner.create(key, data))

    def get(self, key: str) -> memoryview:
        return self._retry(lambda: self._inner.get(key))

    def stream(self, key: str) -> Iterator[Data]:
        """Not asked again: what was taken of it cannot be given back."""
        return self._inner.stream(key)

    def list(self, prefix: str, after: str = "") -> Keys:
        return self._retry(lambda: self._inner.list(prefix, after))

    def list_folders(self, prefix: str) -> Keys:
        return self._retry(lambda: self._inner.list_folders(prefix))

    def is_empty(self) -> bool:
        return self._retry(self._inner.is_empty)

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
                self.outage.answered()  # a refusal is an answer
                raise
            else:
                self.outage.answered()
                return result
            self._on_retry()
            self._abort.sleep(_DICE.uniform(pause_s / 2, pause_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            asked_s = time.monotonic()


def without_patience(store: ObjectStore) -> ObjectStore:
    """The store that a RetryingStore asks, for callers who repeat by themselves; any other store as it is."""
    return store._inner if isinstance(store, RetryingStore) else store


def outage_of(store: ObjectStore) -> Outage:
    """What tells of a store's outages, shared by all who use the same store."""
    return store.outage if isinstance(store, RetryingStore) else Outage(store.url)
