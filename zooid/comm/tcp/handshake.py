"""The handshake of two ranks, after which a connection between them counts.

The rank that connects sends a hello; the other answers with a welcome; the first confirms it; the other settles it.
Each of the first three proves that its sender knows the secret of the listening rank. The secret itself is never sent,
and a proof is useless on any other connection, since both sides add a random nonce.
"""

import hmac
import secrets
import struct
from typing import NamedTuple

from zooid.core.errors import DamagedMessage

SECRET_BYTES = 32
_NONCE_BYTES = 32
_PROOF_BYTES = 32
MAX_STREAMS = 64
"""Maximum number of streams for large messages between two ranks."""
_FIELDS = struct.Struct(f"<8sIHHI{_NONCE_BYTES}s")
_MAGIC = b"zooid-2\n"
HELLO_BYTES = _FIELDS.size + _PROOF_BYTES
WELCOME_BYTES = _NONCE_BYTES + _PROOF_BYTES
CONFIRM_BYTES = _PROOF_BYTES
SETTLED = b"settled\n"
DONE = b"all-met\n"
"""Sent on the first stream before any frame: the connecting rank has opened all of its streams."""


class Hello(NamedTuple):
    """The rank that connects, and the stream that it opens."""

    rank: int
    number: int
    """Number of the stream; 0 carries small messages."""
    num_streams: int
    """Number of streams for large messages; the first hello of a pair does not know it yet, and says 0."""
    attempt: int
    """Number of earlier attempts to open this stream. A later connection replaces an earlier one."""
    nonce: bytes

    @classmethod
    def new(cls, rank: int, number: int, num_streams: int, attempt: int) -> "Hello":
        return cls(rank, number, num_streams, attempt, secrets.token_bytes(_NONCE_BYTES))

    def pack(self, secret: bytes) -> bytes:
        fields = _FIELDS.pack(_MAGIC, *self)
        return fields + _proof(secret, b"hello", fields)

    @classmethod
    def unpack(cls, data: bytes, secret: bytes) -> "Hello":
        """Read a hello; DamagedMessage where it is none, or where its sender does not know the secret."""
        if len(data) != HELLO_BYTES:
            raise DamagedMessage(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
        fields = data[: _FIELDS.size]
        magic, rank, number, num_streams, attempt, nonce = _FIELDS.unpack(fields)
        if magic != _MAGIC or not hmac.compare_digest(data[_FIELDS.size :], _proof(secret, b"hello", fields)):
            raise DamagedMessage("a hello came from a process that does not know the secret")
        if not number <= num_streams <= MAX_STREAMS:
            raise DamagedMessage(f"a hello is for stream {number} of {num_streams}; there are at most {MAX_STREAMS}")
        return cls(rank, number, num_streams, attempt, nonce)


def welcome(secret: bytes, hello: bytes) -> bytes:
    """Return the answer to a hello."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _proof(secret, b"welcome", hello + nonce)


def is_welcome(data: bytes, secret: bytes, hello: bytes) -> bool:
    nonce, proof = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
    return hmac.compare_digest(proof, _proof(secret, b"welcome", hello + nonce))


def confirm(secret: bytes, hello: bytes, welcome: bytes) -> bytes:
    """Return the answer to a welcome."""
    return _proof(secret, b"confirm", hello + welcome)


def is_confirm(data: bytes, secret: bytes, hello: bytes, welcome: bytes) -> bool:
    return hmac.compare_digest(data, confirm(secret, hello, welcome))


def _proof(secret: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, purpose + b":" + data, "sha256")
