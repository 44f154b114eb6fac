"""Tar archives that are only read forward: whatever their headers claim, nothing is read twice or kept in memory.

Python's tarfile believes headers. A negative size sends it backwards, a huge size makes it count blocks after the end,
and a name may be as long as the file. These streams reject all three, so that reading any archive ends.
"""

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Self

from zooid.core.text import quoted
from zooid.store.store_protocol import Data

_MAX_HEADER_BYTES = 2**20
"""The largest header with its names; tarfile itself reads nothing else."""

_ENDS = ("EOFHeaderError", "EmptyHeaderError")
"""Names of tarfile's errors for a proper end of an archive."""
_BROKEN = (tarfile.TarError, ValueError, LookupError, ArithmeticError, RecursionError, EOFError)
"""Errors that tarfile raises for invalid headers."""


class FileStream:
    """A local file; content that is not needed is skipped."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0

    def read(self, size: int) -> bytes:
        _check_size(size)
        content = self._file.read(size)
        self._position += len(content)
        return content

    def seek(self, position: int) -> None:
        _check_forward(self._position, position)
        self._file.seek(position)
        self._position = position

    def tell(self) -> int:
        return self._position


class ObjectStream:
    """An object that arrives in pieces; its size and MD5 sum are computed meanwhile."""

    def __init__(self, pieces: Iterator[Data]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._position = 0
        self.num_bytes = 0
        self.md5 = hashlib.md5(usedforsecurity=False)

    def read(self, size: int) -> bytes:
        _check_size(size)
        parts = []
        while size > 0 and (self._rest or self._next()):
            parts.append(self._take(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def seek(self, position: int) -> None:
        _check_forward(self._position, position)
        while self._position < position and (self._rest or self._next()):
            self._take(position - self._position)
        self._position = position  # after the end there is nothing more to read

    def tell(self) -> int:
        return self._position

    def read_rest(self) -> None:
        """Read to the end, for the size and the MD5 sum."""
        while self._next():
            pass

    def _take(self, size: int) -> memoryview:
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._position += len(taken)
        return taken

    def _next(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self.num_bytes += len(piece)
        self.md5.update(piece)
        self._rest = memoryview(piece)
        return True


class _Header(tarfile.TarInfo):
    """A header that must be valid.

    tarfile takes an invalid header (except the first) for the end of the archive; later samples would be lost silently.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ in _ENDS:
                raise
            raise tarfile.ReadError(f"a header is damaged: {error}") from error


@contextmanager
def opened_archive(stream: FileStream | ObjectStream) -> Iterator[tarfile.TarFile]:
    """Open an archive; any problem with it, inside the context too, is a tarfile.TarError."""
    try:
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:  # type: ignore[call-overload]
            yield archive
    except _BROKEN as error:
        raise tarfile.TarError(quoted(str(error)) or type(error).__name__) from error


def _check_size(size: int) -> None:
    if not 0 <= size <= _MAX_HEADER_BYTES:
        raise tarfile.ReadError(
            f"a header claims {quoted(str(size))} bytes for itself; {_MAX_HEADER_BYTES} are allowed"
        )


def _check_forward(current: int, position: int) -> None:
    if position < current:
        raise tarfile.ReadError("a header claims that its file has fewer than 0 bytes")
