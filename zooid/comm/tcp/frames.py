"""Frames, the units of a stream: a fixed header and a body, both with a checksum.

A frame is checked by its header alone, before any memory is taken for its body: lengths must be consistent, and allowed
for the kind of frame.
"""

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from zooid.comm.tcp.checksums import NOT_CHECKED
from zooid.comm.transport_protocol import COLLECTIVE, POINT_TO_POINT, Message
from zooid.core.errors import DamagedMessage
from zooid.schedule.stream_rules import EAGER_BYTES, PIECE_BYTES

_FIELDS = struct.Struct("<HBBIIqqQQII")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size
_MAGIC = 0x5A02
MAX_REASON_BYTES = 2**14
"""Maximum size of the reason with which a rank leaves."""
MAX_MESSAGE_BYTES = 2**62


class FrameKind(IntEnum):
    """The kinds of frames."""

    EAGER = 1
    """A whole small message, sent before the reader has announced its receive."""
    PIECE = 2
    """A piece of a message whose receive is posted."""
    READY = 3
    """The reader announces that it has posted the receive of a message of this size."""
    OFFER = 4
    """The sender announces a message of this size, and waits until its receive is posted."""
    CREDIT = 5
    """The reader returns credit for eager messages that it has received."""
    LEAVE = 6
    """The sender leaves the group; the body holds the reason, if there is one."""
    HEARTBEAT = 7
    """The sender is alive."""


class Frame(NamedTuple):
    """The header of a frame."""

    kind: FrameKind
    message: Message
    total_bytes: int
    """Size of the whole message; for CREDIT, the returned credit."""
    offset: int = 0
    """Offset of this frame's body in the message."""
    num_bytes: int = 0
    """Size of the body that follows."""
    body_check: int = NOT_CHECKED
    """Checksum of the body."""
    channel: int = 0
    """Number of the frame's group, where several groups share a connection."""

    def pack(self, body_check: int | None = None) -> bytes:
        """Return the header as bytes, with the given checksum of its body if there is one."""
        kind, (space, tag, number, part), total_bytes, offset, num_bytes, check, channel = self
        check = check if body_check is None else body_check
        fields = _FIELDS.pack(_MAGIC, kind, space, part, channel, tag, number, total_bytes, offset, num_bytes, check)
        return fields + _CHECK.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: memoryview) -> "Frame":
        """Read a header; DamagedMessage where it is none, or where its lengths are impossible."""
        fields = _FIELDS.unpack_from(data)
        magic, kind, space, part, channel, tag, number, total_bytes, offset, num_bytes, body_check = fields
        if magic != _MAGIC:
            raise DamagedMessage(
                "the bytes that arrived are no frame of this protocol; do all ranks run the same version of zooid?"
            )
        if zlib.crc32(data[: _FIELDS.size]) != _CHECK.unpack_from(data, _FIELDS.size)[0]:
            raise DamagedMessage("the header of a frame was altered in flight: its checksum is wrong")
        if kind not in _KINDS or space not in (COLLECTIVE, POINT_TO_POINT):
            raise DamagedMessage(
                f"a frame of the unknown kind {kind} arrived; do all ranks run the same version of zooid?"
            )
        message = Message(space, tag, number, part)
        frame = cls(_KINDS[kind], message, total_bytes, offset, num_bytes, body_check, channel)
        if not frame._is_consistent():
            raise DamagedMessage(
                f"a frame {frame.kind.name} has impossible lengths: {num_bytes} bytes at {offset} of {total_bytes}"
            )
        return frame

    def _is_consistent(self) -> bool:
        total_bytes, offset, num_bytes = self.total_bytes, self.offset, self.num_bytes
        match self.kind:
            case FrameKind.EAGER:
                return offset == 0 and num_bytes == total_bytes <= EAGER_BYTES
            case FrameKind.PIECE:
                fits = offset + num_bytes <= total_bytes <= MAX_MESSAGE_BYTES
                return fits and min(total_bytes, 1) <= num_bytes <= PIECE_BYTES
            case FrameKind.LEAVE:
                return offset == 0 and num_bytes == total_bytes <= MAX_REASON_BYTES
            case FrameKind.READY | FrameKind.OFFER | FrameKind.CREDIT:
                return offset == num_bytes == 0 and total_bytes <= MAX_MESSAGE_BYTES
            case FrameKind.HEARTBEAT:
                return offset == num_bytes == total_bytes == 0


_KINDS = {kind.value: kind for kind in FrameKind}
NOBODY = Message(0, 0, 0, 0)
