"""How the bytes of a transfer get from one member to another."""

from collections.abc import Sequence
from typing import Protocol

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout
from zooid.store import ObjectStore, wait_for


class Transport(Protocol):
    """Moves named messages. A name is used once; `receive` waits until it is there, or the abort flag is set."""

    def send(self, name: str, data: memoryview, readers: Sequence[int]) -> None:
        """Hand over the bytes; they may be changed as soon as this returns."""

    def receive(self, name: str, source: int) -> memoryview:
        """The bytes of the message, once they have arrived."""

    def discard(self, names: Sequence[str]) -> None:
        """These messages have been taken by all of their readers."""


class StoreTransport:
    """Messages as objects: for members that accept no connections."""

    def __init__(self, objects: ObjectStore, prefix: str, *, timeout_s: float, abort: Abort) -> None:
        self._objects = objects
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._abort = abort

    def send(self, name: str, data: memoryview, readers: Sequence[int]) -> None:
        self._abort.check()
        self._objects.put(f"{self._prefix}/{name}", data)

    def receive(self, name: str, source: int) -> memoryview:
        try:
            return wait_for(self._objects, f"{self._prefix}/{name}", timeout_s=self._timeout_s, abort=self._abort)
        except CommTimeout as error:
            raise CommTimeout(
                f"rank {source} did not deliver {name} of {self._prefix} within {self._timeout_s:g} s; is it alive?"
            ) from error

    def discard(self, names: Sequence[str]) -> None:
        self._objects.delete([f"{self._prefix}/{name}" for name in names])
