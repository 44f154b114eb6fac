"""The trailer of a message in an object, which shows whether the message is whole and the right one."""

import zlib
from dataclasses import dataclass

import numpy as np

from zooid.core.errors import DamagedMessage
from zooid.core.runs.store_rules import TRAILER, TRAILER_BYTES

_MAGIC = b"zoo2"


@dataclass(frozen=True)
class Opened:
    """A message and its sender's watermark."""

    data: memoryview
    watermark: int
    """Number of the last collective call before which, and with which, all calls have ended at the sender."""
    sealed_s: float
    """When the sender sealed it, by a clock of the sender's own."""


def seal(name: str, data: memoryview, watermark: int, sealed_s: float) -> memoryview:
    """Return a copy of the data with its trailer.

    The checksum also covers the name, so that no object passes for another, and what the sender says besides.
    """
    sealed = np.empty(data.nbytes + TRAILER_BYTES, np.uint8)
    np.copyto(sealed[: data.nbytes], np.frombuffer(data, np.uint8))
    checksum = _checksum(name, sealed.data[: data.nbytes], watermark, sealed_s)
    trailer = TRAILER.pack(_MAGIC, checksum, watermark, data.nbytes, sealed_s)
    sealed[data.nbytes :] = np.frombuffer(trailer, np.uint8)
    return sealed.data


def unseal(name: str, sealed: memoryview) -> Opened:
    """Return the message without a copy; DamagedMessage where it is truncated, altered or has another name."""
    num_bytes = sealed.nbytes - TRAILER_BYTES
    if num_bytes < 0:
        raise DamagedMessage(f"{name} is truncated to {sealed.nbytes} bytes")
    magic, checksum, watermark, expected_bytes, sealed_s = TRAILER.unpack(sealed[num_bytes:])
    data = sealed[:num_bytes]
    if magic != _MAGIC or expected_bytes != num_bytes:
        raise DamagedMessage(f"{name} is truncated or is no message: it has {sealed.nbytes} bytes")
    if _checksum(name, data, watermark, sealed_s) != checksum:
        raise DamagedMessage(f"{name} was altered: its checksum does not fit its {num_bytes} bytes")
    return Opened(data, watermark, sealed_s)


def _checksum(name: str, data: memoryview, watermark: int, sealed_s: float) -> int:
    return zlib.crc32(f"{name} {watermark} {sealed_s.hex()}".encode(), zlib.crc32(data))
