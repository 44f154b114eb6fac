"""Samples in a tar file, by the rules of webdataset, so that each reads what the other wrote.

Consecutive files whose paths are equal up to the first dot of the file name are one sample; the rest of the name is the
field, in lower case. Files without a dot, and names such as `__meta__`, belong to no sample.
"""

import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from zooid.core.errors import InputError
from zooid.core.runs.shard import SampleFiles, ShardTable
from zooid.core.text import quoted
from zooid.store.shards.tar_stream import FileStream, opened_archive

_PIECE_BYTES = 2**20


def table_of(path: Path, source: str, *, with_checksums: bool) -> ShardTable:
    """Positions of the samples in a tar file; `source` names it in messages. TarError if the file is invalid."""
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        with opened_archive(FileStream(file)) as archive:
            samples = [*samples_of(archive, source)]
        if any(offset + size > size_bytes for sample in samples for _, offset, size in sample.fields):
            raise tarfile.ReadError("unexpected end of data")
        if with_checksums:
            samples = [SampleFiles(sample.name, _checksum(file.fileno(), sample), sample.fields) for sample in samples]
    return ShardTable(size_bytes=size_bytes, samples=tuple(samples))


def samples_of(archive: tarfile.TarFile, source: str) -> Iterator[SampleFiles]:
    """The samples of an open archive, in order, without keeping them."""
    name: str | None = None
    fields: dict[str, tuple[int, int]] = {}
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # otherwise tarfile would keep them all
        parts = _parts(member.name)
        if not member.isreg() or _is_meta(member.name) or parts is None:
            continue
        if parts[0] != name:
            if name is not None:
                yield _sample(name, fields)
            name, fields = parts[0], {}
        field = parts[1].lower()
        if field in fields or member.issparse() or member.size < 0:
            problem = "is sparse" if member.issparse() else "has fewer than 0 bytes"
            if field in fields:
                problem = f"is the second .{quoted(field)} of its sample"
            raise InputError(
                f"{quoted(member.name)!r} in {source} {problem}; write the shard again, for example with webdataset"
            )
        fields[field] = (member.offset_data, member.size)
    if name is not None:
        yield _sample(name, fields)


def read_sample(descriptor: int, sample: SampleFiles) -> dict[str, bytes] | None:
    """The files of a sample, by field; None if they have changed since the table was made."""
    files = {field: _read(descriptor, offset, size) for field, offset, size in sample.fields}
    if any(len(files[field]) != size for field, _, size in sample.fields):
        return None
    if sample.crc is not None:
        crc = 0
        for content in files.values():
            crc = zlib.crc32(content, crc)
        if crc != sample.crc:
            return None
    return files


def _parts(name: str) -> tuple[str, str] | None:
    """The path up to the first dot of the file name, and the field after it; None if it belongs to no sample.

    It equals webdataset's `((?:.*/|)[^.]+)[.]([^/]*)`, which takes hours for a long name of slashes.
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, field = last.partition(".")
    if not dot:
        return None
    if not stem and (not slash or "." in folder.rpartition("/")[2]):
        return None
    return f"{folder}{slash}{stem}", field


def _is_meta(name: str) -> bool:
    """Whether the first part of a path is a name such as `__meta__`."""
    first = name.partition("/")[0]
    return len(first) >= 4 and first.startswith("__") and first.endswith("__")


def _sample(name: str, fields: dict[str, tuple[int, int]]) -> SampleFiles:
    return SampleFiles(name, None, tuple((field, offset, size) for field, (offset, size) in fields.items()))


def _checksum(descriptor: int, sample: SampleFiles) -> int:
    crc = 0
    for _, offset, size in sample.fields:
        for start in range(offset, offset + size, _PIECE_BYTES):
            crc = zlib.crc32(_read(descriptor, start, min(_PIECE_BYTES, offset + size - start)), crc)
    return crc


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """Read without moving the file position, which forked processes share; the kernel may return less at a time."""
    content = os.pread(descriptor, size, offset)
    while len(content) < size and (more := os.pread(descriptor, size - len(content), offset + len(content))):
        content += more
    return content
