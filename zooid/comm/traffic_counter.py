"""What a group has asked of the store and of the links, for its bill and for whoever wonders what it waits for."""

import threading
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Counts since the group was made, of this rank alone."""

    num_puts: int = 0
    num_gets: int = 0
    """That brought an object."""
    num_missed_gets: int = 0
    """That came too early."""
    num_deletes: int = 0
    """Requests; one deletes many objects."""
    num_retries: int = 0
    """Requests that were made again because the store failed, or because an object was damaged."""
    num_messages_sent: int = 0
    num_messages_received: int = 0
    sent_bytes: int = 0
    """On the wire, without the headers of protocols below."""
    received_bytes: int = 0
    waited_s: float = 0.0
    """From when a message was wanted to when it was there, summed over messages: several can be waited for at once."""


class Counter:
    """Adds up a Statistics, from any thread."""

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
