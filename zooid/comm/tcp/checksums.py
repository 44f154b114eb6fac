"""A checksum that keeps up with a fast network: the CRC-32 of the column sums of a table of numbers."""

import zlib

import numpy as np

_ROW_BYTES = 4096
_BLOCK_BYTES = 2**18
"""Rows are summed within blocks of this size, so that swapped blocks change the checksum."""
_MIN_ROWS = 4
"""With fewer rows, CRC-32 alone is faster."""
_IN_PLACE_OF_ZERO = 0xFFFFFFFF
_NUMBER = np.dtype("<u8")
NOT_CHECKED = 0
"""The value where no checksum was computed; it is the checksum of no data."""


def checksum(data: memoryview) -> int:
    """Return 32 bits that change when the bytes are damaged.

    Up to 16 KiB this is plain CRC-32, which zlib computes at 1 to 2 GB/s. Longer data are cut into rows of 512 numbers
    of 8 bytes, and CRC-32 covers the sums of the columns, at several times that speed. Damage within 4 KiB in a row
    always changes a sum. The GIL is free meanwhile.
    """
    if data.nbytes < _MIN_ROWS * _ROW_BYTES:
        return zlib.crc32(data) or _IN_PLACE_OF_ZERO
    return RunningChecksum(data).finish()


class RunningChecksum:
    """The checksum of data that arrive bit by bit; most of it is computed while the rest is in flight."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._value = 0
        self._covered_bytes = 0

    def advance(self, num_bytes: int) -> None:
        """Cover all whole blocks among the first `num_bytes` bytes, which have arrived."""
        while num_bytes - self._covered_bytes >= _BLOCK_BYTES:
            self._cover(self._covered_bytes + _BLOCK_BYTES)

    def finish(self) -> int:
        """Return the checksum, once all bytes have arrived."""
        self.advance(self._data.nbytes)
        if self._covered_bytes < self._data.nbytes:
            self._cover(self._data.nbytes)
        return self._value or _IN_PLACE_OF_ZERO

    def _cover(self, end: int) -> None:
        begin = self._covered_bytes
        num_rows = (end - begin) // _ROW_BYTES
        if num_rows >= _MIN_ROWS:
            rows = np.ndarray((num_rows, _ROW_BYTES // _NUMBER.itemsize), _NUMBER, self._data, begin)
            self._value = zlib.crc32(np.add.reduce(rows), self._value)
            begin += num_rows * _ROW_BYTES
        if begin < end:
            self._value = zlib.crc32(self._data[begin:end], self._value)
        self._covered_bytes = end
