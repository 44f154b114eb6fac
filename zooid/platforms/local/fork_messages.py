"""What the local platform and a zygote say to each other: one line of JSON for each message."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from zooid.core.records import Record
from zooid.platforms.platform import Program


class Birth(Record, frozen=True, kw_only=True):
    """A member that a zygote is to fork."""

    number: int
    """Names the member in the answers; the platform counts."""
    program: Program
    spec_url: str
    environment: dict[str, str]
    folder: str
    """The member's working directory."""
    log: str
    """The file that the member prints to; it exists."""


class News(Record, frozen=True, kw_only=True):
    """What a zygote tells about a member: first its process id, and later how it ended."""

    number: int
    pid: int | None = None
    status: int | None = None
    """The exit status, negative for a signal."""


Message = TypeVar("Message", Birth, News)


class Lines(Generic[Message]):
    """Takes bytes as they arrive, and gives the messages that are complete."""

    def __init__(self, kind: type[Message]) -> None:
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(kind)
        self._begun = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        *complete, self._begun = (self._begun + data).split(b"\n")
        return map(self._decoder.decode, complete)


def encode_line(message: Birth | News) -> bytes:
    return msgspec.json.encode(message) + b"\n"
