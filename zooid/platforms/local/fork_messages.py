"""Messages between the local platform and a zygote: one line of JSON each."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from zooid.core.records import Record
from zooid.core.runs.ticket import Ticket


class Birth(Record, frozen=True, kw_only=True):
    """A request to fork the program that attends a member."""

    number: int
    """Number of the member in the answers, which the platform counts."""
    ticket: Ticket
    environment: dict[str, str]
    folder: str
    """The working directory of the member."""
    log: str
    """The existing file for the output of the forked program. The member's own output goes elsewhere."""


class News(Record, frozen=True, kw_only=True):
    """A zygote's report on what it has forked: first the process id, later the exit status."""

    number: int
    pid: int | None = None
    status: int | None = None
    """The exit status, negative for a signal."""


Message = TypeVar("Message", Birth, News)


class Lines(Generic[Message]):
    """Decodes the complete messages from bytes as they arrive."""

    def __init__(self, kind: type[Message]) -> None:
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(kind)
        self._partial = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        *complete, self._partial = (self._partial + data).split(b"\n")
        return map(self._decoder.decode, complete)


def encode_line(message: Birth | News) -> bytes:
    return msgspec.json.encode(message) + b"\n"
