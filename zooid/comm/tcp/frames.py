"""What travels on a stream: frames of a fixed header and a body."""

import struct
from enum import IntEnum
from typing import NamedTuple

from zooid.comm.transport import Message

_HEADER = struct.Struct("<BBHIqqQQQ")
HEADER_BYTES = _HEADER.size
_MAGIC = 0x5A00


class FrameKind(IntEnum):
    """What a frame says."""

    DATA = 1
    """Bytes of a message, from an offset on."""
    READY = 2
    """The reader has a place for a large message: send it."""
    OFFER = 3
    """The sender has a large message: it can be taken by who receives from any rank, and its size be checked."""
    LEAVE = 4
    """The sender is done with the group; the body says why, if it is not in peace."""


class Frame(NamedTuple):
    """A header."""

    kind: FrameKind
    message: Message
    total_bytes: int
    """Of the whole message."""
    offset: int
    """Of this frame's body in it."""
    num_bytes: int
    """Of the body that follows."""

    def pack(self) -> bytes:
        message = self.message
        kind = _MAGIC | self.kind
        return _HEADER.pack(
            message.kind,
            0,
            kind,
            message.part,
            message.tag,
            message.number,
            self.total_bytes,
            self.offset,
            self.num_bytes,
        )

    @classmethod
    def unpack(cls, data: memoryview) -> "Frame":
        space, _, kind, part, tag, number, total_bytes, offset, num_bytes = _HEADER.unpack(data)
        if kind & 0xFF00 != _MAGIC:
            raise ValueError("what arrived is no frame of this protocol")
        message = Message(space, tag, number, part)
        return cls(FrameKind(kind & 0xFF), message, total_bytes, offset, num_bytes)


NOBODY = Message(0, 0, 0, 0)
