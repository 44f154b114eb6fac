"""How many shards this process and its children have fetched, and how many bytes, for the bill of a run.

Fetchers are separate processes, and so may be those that read samples. They all append to one file without a name,
which they inherit. Small appends are atomic, so no lock is needed.
"""

import os
import struct
import tempfile
from functools import cache

_ENTRY = struct.Struct("<QQ")
"""Number of gets and of bytes of one fetch."""


@cache
def fetch_log() -> int:
    """Descriptor of the file to which fetches are appended; the first call opens it."""
    descriptor, path = tempfile.mkstemp(prefix="zooid-fetches-")
    os.close(descriptor)
    appending = os.open(path, os.O_RDWR | os.O_APPEND)
    os.unlink(path)
    return appending


def append_fetch(descriptor: int, num_gets: int, num_bytes: int) -> None:
    """Append one fetch."""
    os.write(descriptor, _ENTRY.pack(num_gets, num_bytes))


def fetched() -> tuple[int, int]:
    """Numbers of gets and of bytes so far; zeros if nothing was ever fetched."""
    if fetch_log.cache_info().currsize == 0:
        return 0, 0
    data = os.pread(fetch_log(), os.fstat(fetch_log()).st_size, 0)
    entries = [*_ENTRY.iter_unpack(data)]
    return sum(entry[0] for entry in entries), sum(entry[1] for entry in entries)
