"""Counts of the requests that a process sends to a store, for the bill of its run."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from zooid.core.errors import ObjectExists
from zooid.core.runs.store_rules import LISTED_PER_PAGE, put_requests
from zooid.store.retries import without_patience
from zooid.store.store_protocol import Data, Keys, ObjectStore, byte_view


@dataclass(frozen=True, kw_only=True)
class RequestCounts:
    """Requests and bytes since the store was opened. Requests that fail are charged like the others."""

    num_puts: int = 0
    """Number of put requests; a large object takes several."""
    num_gets: int = 0
    """Number of gets, including those of missing objects."""
    num_lists: int = 0
    """Number of pages of listings."""
    sent_bytes: int = 0
    received_bytes: int = 0


class CountingStore:
    """Another store, whose requests are counted."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self._inner = inner
        self._lock = threading.Lock()
        self._values = {field.name: 0 for field in fields(RequestCounts)}

    @property
    def counts(self) -> RequestCounts:
        with self._lock:
            return RequestCounts(**self._values)

    def put(self, key: str, data: Data) -> None:
        num_bytes = len(byte_view(data))
        self._add(num_puts=put_requests(num_bytes), sent_bytes=num_bytes)
        self._inner.put(key, data)

    def create(self, key: str, data: Data) -> None:
        num_bytes = len(byte_view(data))
        self._add(num_puts=1, sent_bytes=num_bytes)
        try:
            self._inner.create(key, data)
        except ObjectExists:
            self._add(num_gets=1)  # the object was read, and compared with these bytes
            raise

    def get(self, key: str) -> memoryview:
        self._add(num_gets=1)
        data = self._inner.get(key)
        self._add(received_bytes=data.nbytes)
        return data

    def stream(self, key: str) -> Iterator[Data]:
        self._add(num_gets=1)
        for piece in self._inner.stream(key):
            self._add(received_bytes=len(byte_view(piece)))
            yield piece

    def list(self, prefix: str, after: str = "") -> Keys:
        self._add(num_lists=1)
        listed = self._inner.list(prefix, after)
        self._add(num_lists=(len(listed) - 1) // LISTED_PER_PAGE if listed else 0)
        return listed

    def list_folders(self, prefix: str) -> Keys:
        self._add(num_lists=1)
        return self._inner.list_folders(prefix)

    def is_empty(self) -> bool:
        self._add(num_lists=1)
        return self._inner.is_empty()

    def stored_bytes(self, prefix: str) -> int:
        self._add(num_lists=1)
        return self._inner.stored_bytes(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._inner.delete(keys)

    def _add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount


def counts_of(store: ObjectStore) -> RequestCounts:
    """Requests that this process has sent through an opened store; none if nobody counts them."""
    inner = without_patience(store)
    return inner.counts if isinstance(inner, CountingStore) else RequestCounts()
