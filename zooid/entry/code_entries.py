"""The files in an archive of code, which are checked before any of them is written.

The archive comes from a store that others may write to. A file must stay inside its folder, a link must not lead out of
it, and there is a limit on what an archive may become. Python's own filter for such archives is missing in releases of
Python that zooid supports, and it has no limits.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zooid.core.errors import InputError
from zooid.core.runs.code import MAX_CODE_BYTES, MAX_CODE_FILES
from zooid.core.text import quoted
from zooid.core.units import format_bytes
from zooid.store.shards.tar_stream import FileStream, opened_archive

_MAX_NAME_BYTES, _MAX_PART_BYTES = 3000, 255
"""Longest path and longest file name, which leave room for the path of the folder in the 4096 bytes of Linux."""
_MAX_DEPTH = 200
"""Maximum number of parts of a path."""
_MAX_TAR_BYTES = MAX_CODE_BYTES + MAX_CODE_FILES * 5000
"""Maximum size of a tar file: besides its content, each file takes headers and padding, and maybe a long name."""
_GZIP = 31
"""The value with which zlib expects the header and the checksum of gzip."""
_EXECUTABLE = 0o100
_UNSAFE_PARTS = frozenset({"", ".", ".."})


@dataclass(frozen=True)
class CodeEntry:
    """One file or symbolic link of an archive."""

    content: memoryview
    is_executable: bool = False
    link_target: str | None = None
    """The relative target of a symbolic link; None for a file."""


def decode_code(data: bytes | memoryview) -> dict[str, CodeEntry]:
    """Decode an archive of code completely; InputError if anything in it is not as zooid packs it."""
    return read_entries(_decompressed(data))


def _decompressed(data: bytes | memoryview) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        tar = stream.decompress(data, _MAX_TAR_BYTES)
    except zlib.error as error:
        raise _refused(f"it cannot be decompressed ({error})") from error
    if stream.unconsumed_tail:
        raise _refused(f"it has more than {format_bytes(_MAX_TAR_BYTES)}")
    if not stream.eof or stream.unused_data:
        raise _refused("it is cut short" if not stream.eof else "something follows it")
    return tar


def read_entries(tar: bytes) -> dict[str, CodeEntry]:
    """Read the entries of an archive that is decompressed, by their names."""
    try:
        with opened_archive(FileStream(io.BytesIO(tar))) as archive:
            entries = dict(_entries(archive, memoryview(tar)))
    except tarfile.TarError as error:
        raise _refused(f"it is damaged ({error})") from error
    _check_folders(entries)
    return entries


def _entries(archive: tarfile.TarFile, tar: memoryview) -> Iterator[tuple[str, CodeEntry]]:
    names = set[str]()
    num_bytes = 0
    for header in archive:
        archive.members = []  # type: ignore[attr-defined]  # otherwise tarfile would keep them all
        if len(names) == MAX_CODE_FILES:
            raise _refused(f"it has more than {MAX_CODE_FILES} files")
        if header.name in names:
            raise _refused(f"it has {quoted(header.name)!r} twice")
        names.add(header.name)
        _check_name(header.name)
        if header.issym():
            _check_target(header.name, header.linkname)
            yield header.name, CodeEntry(tar[:0], link_target=header.linkname)
            continue
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or header.issparse():
            raise _refused(f"{quoted(header.name)!r} is neither a file nor a symbolic link")
        num_bytes += header.size
        if num_bytes > MAX_CODE_BYTES:
            raise _refused(f"its files have more than {format_bytes(MAX_CODE_BYTES)}")
        content = tar[header.offset_data : header.offset_data + header.size]
        if len(content) != header.size:
            raise _refused(f"{quoted(header.name)!r} is cut short")
        yield header.name, CodeEntry(content, is_executable=bool(header.mode & _EXECUTABLE))


def _check_name(name: str) -> None:
    parts = name.split("/")
    if _UNSAFE_PARTS.intersection(parts) or "\0" in name:
        raise _refused(f"{quoted(name)!r} is not a path inside a folder")
    is_long = max(map(_num_bytes, parts)) > _MAX_PART_BYTES or _num_bytes(name) > _MAX_NAME_BYTES
    if is_long or len(parts) > _MAX_DEPTH:
        raise _refused(f"the name {quoted(name)!r} is too long")


def _check_target(name: str, target: str) -> None:
    """Reject a link that leads out of the folder.

    A target that goes up at most to the folder, and then only down, stays inside even if it passes other such links.
    """
    parts = target.split("/")
    num_up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    goes_down = not _UNSAFE_PARTS.intersection(parts[num_up:]) and "\0" not in target
    if target != "." and not (goes_down and num_up <= name.count("/") and _num_bytes(target) <= _MAX_NAME_BYTES):
        raise _refused(f"the link {quoted(name)!r} to {quoted(target)!r} may lead out of the folder")


def _check_folders(entries: Mapping[str, CodeEntry]) -> None:
    """Reject an entry whose folder is a file or a link: behind a link, it could be written anywhere."""
    for name in entries:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in entries:
                raise _refused(f"{quoted(name)!r} is below {quoted(folder)!r}, which is not a folder")


def _num_bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _refused(reason: str) -> InputError:
    return InputError(f"an archive of code is not used, because {reason}; was it written by another program?")
