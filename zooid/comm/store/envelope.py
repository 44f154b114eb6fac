"""The trailer of a message in an object, which shows whether the message is whole and the right one."""

import zlib
from dataclasses import dataclass

import numpy as np

from zooid.core.errors import DamagedMessage
from zooid.core.runs.store_rules import TRAILER, TRAILER_BYTES

_MAGIC = b"zoo1"


@dataclass(frozen=True)
class Opened:
    """A message and its sender's watermark."""

    data: memoryview
    watermark: int
    """Number of the last collective call before which, and with which, all calls have ended at the sender."""


def seal(name: str, data: memoryview, watermark: int) -> memoryview:
    """Return a copy of the data with its trailer.

    The checksum also covers the name, so that no object passes for another, and the watermark, by which others delete.
    """
    sealed = np.empty(data.nbytes + TRAILER_BYTES, np.uint8)
    np.copyto(sealed[: data.nbytes], np.frombuffer(data, np.uint8))
    checksum = zlib.crc32(f"{name} {watermark}".encode(), zlib.crc32(sealed.data[: data.nbytes]))
    sealed[data.nbytes :] = np.frombuffer(TRAILER.pack(_MAGIC, checksum, watermark, data.nbytes), np.uint8)
    return sealed.data


def unseal(name: str, sealed: memoryview) -> Opened:
    """Return the message without a copy; DamagedMessage where it is truncated, altered or has another name."""
    num_bytes = sealed.nbytes - TRAILER_BYTES
    if num_bytes < 0:
        raise DamagedMessage(f"{name} is truncated to {sealed.nbytes} bytes")
    magic, checksum, watermark, expected_bytes = TRAILER.unpack(sealed[num_bytes:])
    data = sealed[:num_bytes]
    if magic != _MAGIC or expected_bytes != num_bytes:
        raise DamagedMessage(f"{name} is truncated or is no message: it has {sealed.nbytes} bytes")
    if zlib.crc32(f"{name} {watermark}".encode(), zlib.crc32(data)) != checksum:
        raise DamagedMessage(f"{name} was altered: its checksum does not fit its {num_bytes} bytes")
    return Opened(data, watermark)
