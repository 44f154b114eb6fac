"""A store that fails on purpose, so that tests can prove what survives it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, TypeVar

from zooid.core.errors import InputError, StoreUnavailable
from zooid.store.create_only import create_once
from zooid.store.store_protocol import Data, Keys, ObjectStore, byte_view

Operation = Literal["put", "create", "get", "list", "delete"]
Fault = Literal["delay", "error", "lost_response"]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often one operation meets each fault, from 0 (never) to 1 (always)."""

    delay: float = 0.0
    error: float = 0.0
    """Fails, and nothing was done."""
    lost_response: float = 0.0
    """Fails, although it was done."""
    delay_s: float = 0.0
    """A delay lasts up to this long."""

    def __post_init__(self) -> None:
        for name in ("delay", "error", "lost_response"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"the rate `{name}` is {getattr(self, name)}; it must be from 0 to 1")
        if self.delay_s < 0 or (self.delay > 0) != (self.delay_s > 0):
            raise InputError(f"`delay` {self.delay} and `delay_s` {self.delay_s} must both be 0 or both above 0")


_NEVER = Rates()


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The rates of each operation; `list` covers the listing of folders as well."""

    put: Rates = _NEVER
    create: Rates = _NEVER
    get: Rates = _NEVER
    list: Rates = _NEVER
    delete: Rates = _NEVER

    @classmethod
    def everywhere(cls, rates: Rates) -> "Faults":
        return cls(**{field.name: rates for field in fields(cls)})


class FaultyStore:
    """Another store, with faults.

    Whether a call fails follows from the seed, the operation, the key and how often this operation met this key
    before: not from the order in which threads arrive, so a run can be repeated.
    """

    def __init__(self, inner: ObjectStore, faults: Faults, seed: int) -> None:
        self.url = inner.url
        self._inner = inner
        self._faults = faults
        self._seed = seed
        self._lock = threading.Lock()
        self._num_calls: Counter[tuple[Operation, str]] = Counter()
        self._num_faults: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """How many faults fired, under names such as `create.lost_response`; what never fired is absent."""
        with self._lock:
            return dict(self._num_faults)

    def put(self, key: str, data: Data) -> None:
        self._run("put", key, lambda: self._inner.put(key, data))

    def create(self, key: str, data: Data) -> None:
        def attempt() -> None:
            self._run("create", key, lambda: self._inner.create(key, data))

        create_once(attempt, lambda: self.get(key), key, byte_view(data))

    def get(self, key: str) -> memoryview:
        return self._run("get", key, lambda: self._inner.get(key))

    def stream(self, key: str) -> Iterator[Data]:
        yield self.get(key)

    def list(self, prefix: str, after: str = "") -> Keys:
        return self._run("list", prefix, lambda: self._inner.list(prefix, after))

    def list_folders(self, prefix: str) -> Keys:
        return self._run("list", prefix, lambda: self._inner.list_folders(prefix))

    def is_empty(self) -> bool:
        return self._run("list", "", self._inner.is_empty)

    def stored_bytes(self, prefix: str) -> int:
        return self._run("list", prefix, lambda: self._inner.stored_bytes(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        doomed = tuple(keys)
        self._run("delete", " ".join(doomed), lambda: self._inner.delete(doomed))

    def _run(self, operation: Operation, key: str, action: Callable[[], Result]) -> Result:
        with self._lock:
            nth_call = self._num_calls[operation, key]
            self._num_calls[operation, key] += 1
        rates: Rates = getattr(self._faults, operation)
        dice = random.Random(f"{self._seed} {operation} {key} {nth_call}")
        delay_s = dice.random() * rates.delay_s
        if dice.random() < rates.delay:
            self._count(operation, "delay")
            time.sleep(delay_s)
        if dice.random() < rates.error:
            self._count(operation, "error")
            raise StoreUnavailable(f"injected: {operation} of {key!r} failed before it was done")
        result = action()
        if dice.random() < rates.lost_response:
            self._count(operation, "lost_response")
            raise StoreUnavailable(f"injected: {operation} of {key!r} was done, but its response was lost")
        return result

    def _count(self, operation: Operation, fault: Fault) -> None:
        with self._lock:
            self._num_faults[f"{operation}.{fault}"] += 1
