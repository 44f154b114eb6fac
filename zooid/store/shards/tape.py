"""A tar file as it comes, read forward only: whatever its headers claim, nothing is read twice or held in memory.

Python's tarfile believes headers: a negative size sends it back to where it was, a huge one lets it count blocks behind
the end, and a long name may be as long as the file. A tape refuses all three, so that every archive comes to an end.
"""

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol, Self

from zooid.core.text import quoted
from zooid.store.store_protocol import Data

_MOST_AT_ONCE = 2**20
"""Bytes of one header with its names; they are the only content that tarfile reads itself."""

_ENDS = ("EOFHeaderError", "EmptyHeaderError")
"""Names of the errors by which tarfile tells itself that an archive ends as it should."""
_BROKEN = (tarfile.TarError, ValueError, LookupError, ArithmeticError, RecursionError, EOFError)
"""What tarfile raises for headers that make no sense."""


class Tape(Protocol):
    """What tarfile needs of a file that it does not extract from."""

    def read(self, size: int) -> bytes: ...

    def seek(self, position: int) -> object: ...

    def tell(self) -> int: ...


class FileTape:
    """A file on this machine; what is not read is skipped without a look at it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int) -> bytes:
        _check_size(size)
        content = self._file.read(size)
        self._at += len(content)
        return content

    def seek(self, position: int) -> None:
        _check_forward(self._at, position)
        self._file.seek(position)
        self._at = position

    def tell(self) -> int:
        return self._at


class StreamTape:
    """An object that arrives piece by piece, which notes how much that was and its MD5 sum."""

    def __init__(self, pieces: Iterator[Data]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._at = 0
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
        _check_forward(self._at, position)
        while self._at < position and (self._rest or self._next()):
            self._take(position - self._at)
        self._at = position  # behind the end there is nothing more to read

    def tell(self) -> int:
        return self._at

    def read_rest(self) -> None:
        """Let the rest pass, for the number of bytes and their sum."""
        while self._next():
            pass

    def _take(self, size: int) -> memoryview:
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._at += len(taken)
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
    """A header that is complete and makes sense. tarfile takes any other but the first for the end of the archive, and
    samples behind it would be lost without a word."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ in _ENDS:
                raise
            raise tarfile.ReadError(f"a header is damaged: {error}") from error


@contextmanager
def opened_archive(tape: Tape) -> Iterator[tarfile.TarFile]:
    """The archive on a tape; tarfile.TarError for all that is wrong with it, inside of the context, too."""
    try:
        with tarfile.open(fileobj=tape, mode="r:", tarinfo=_Header) as archive:  # type: ignore[call-overload]
            yield archive
    except _BROKEN as error:
        raise tarfile.TarError(quoted(str(error)) or type(error).__name__) from error


def _check_size(size: int) -> None:
    if not 0 <= size <= _MOST_AT_ONCE:
        raise tarfile.ReadError(f"a header claims {quoted(str(size))} bytes for itself; {_MOST_AT_ONCE} are allowed")


def _check_forward(at: int, position: int) -> None:
    if position < at:
        raise tarfile.ReadError("a header claims that its file has fewer than 0 bytes")
