"""Counts of a group's messages and store requests, for its bill and for finding out what it waits for."""

import threading
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Counts of one rank since its group was created."""

    num_puts: int = 0
    num_gets: int = 0
    """Number of gets that returned an object."""
    num_missed_gets: int = 0
    """Number of gets that came before the object."""
    num_deletes: int = 0
    """Number of delete requests, each of which deletes many objects."""
    num_retries: int = 0
    """Number of requests that were repeated because the store failed or an object was damaged."""
    num_messages_sent: int = 0
    num_messages_received: int = 0
    sent_bytes: int = 0
    """Bytes on the wire, without the headers of lower protocols."""
    received_bytes: int = 0
    waited_s: float = 0.0
    """Time from when a message was expected to its arrival, summed over messages, whose waits may overlap."""


class Counter:
    """Adds up Statistics from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {field.name: field.default for field in fields(Statistics)}  # type: ignore[misc]

    def add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount

    def read(self) -> Statistics:
        with self._lock:
            return Statistics(**self._values)  # type: ignore[arg-type]
