"""A store that is asked again when it fails: every operation may be repeated without harm."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from zooid.core.abort import Abort
from zooid.core.errors import StoreUnavailable
from zooid.store.protocol import Data, Keys, ObjectStore

Result = TypeVar("Result")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0


class RetryingStore:
    """Another store, asked again with growing pauses until it answers, `give_up_s` have passed, or `abort` is set.

    Pauses are drawn at random, so that members who failed together do not come back together.
    """

    def __init__(
        self, inner: ObjectStore, abort: Abort, *, give_up_s: float, on_retry: Callable[[], None] = lambda: None
    ) -> None:
        self.url = inner.url
        self._inner = inner
        self._abort = abort
        self._give_up_s = give_up_s
        self._on_retry = on_retry

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
        pause_s = _FIRST_PAUSE_S
        while True:
            self._abort.check()
            try:
                return action()
            except StoreUnavailable:
                if time.monotonic() - began_s + pause_s > self._give_up_s:
                    raise
            self._on_retry()
            self._abort.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
