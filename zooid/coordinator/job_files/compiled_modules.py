"""Compiled modules of zooid, which travel with it, so that its members need not compile them at every start."""

import importlib.util
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_HEADER_BYTES = 16
_IS_CHECKED_HASH = 0b11
"""Flags of a compiled file that holds a hash of its source, against which Python compares it."""


def compiled_modules(root: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return what Python has compiled before of these modules, by the paths of the compiled files below `root`.

    Python tells by the time of a source whether its compiled file is valid, and unpacked files have other times. So the
    files hold a hash of the source instead. A member with another Python does not look at them.
    """
    found = {}
    for name in names:
        source = root / name
        with suppress(OSError, NotImplementedError):  # not every Python keeps compiled files
            compiled = Path(importlib.util.cache_from_source(str(source)))
            data = compiled.read_bytes()
            about = source.stat()
            of_source = struct.pack("<LL", int(about.st_mtime) & 0xFFFFFFFF, about.st_size & 0xFFFFFFFF)
            if data[:_HEADER_BYTES] == importlib.util.MAGIC_NUMBER + bytes(4) + of_source:
                flags = struct.pack("<L", _IS_CHECKED_HASH)
                digest = importlib.util.source_hash(source.read_bytes())
                place = str(Path(name).parent / compiled.parent.name / compiled.name)
                found[place] = importlib.util.MAGIC_NUMBER + flags + digest + data[_HEADER_BYTES:]
    return found
