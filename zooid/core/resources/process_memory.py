"""The memory that this process holds, as the kernel counts it."""

import re
from contextlib import suppress
from pathlib import Path

from zooid.core.resources.machine import SELF

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
"""How the first line of a mapping begins in smaps."""


def peak_resident_bytes(process: Path = SELF) -> int:
    """Return the peak resident memory of this process since its start, or since `forget_peak`.

    The peak that getrusage reports is inherited from the parent process; this one is not.
    """
    return _status_bytes(process, "VmHWM:")


def peak_needed_bytes(process: Path = SELF) -> int:
    """Return the peak memory since `forget_peak`, without pages of files that nothing has used since then.

    The kernel reclaims such pages, above all of libraries, when memory is short. How many there are depends on how
    it has read the files: with the same program it differs by 100 MB.
    """
    try:
        unused_bytes = _unused_file_bytes((process / "smaps").read_text())
    except OSError:
        unused_bytes = 0
    return peak_resident_bytes(process) - unused_bytes


def _unused_file_bytes(mappings: str) -> int:
    """Return the resident bytes of files whose referenced bit is not set, from the text of smaps."""
    unused_kb = 0
    is_of_file, kb = False, dict[str, int]()
    for line in mappings.splitlines():
        if _MAPPING.match(line):
            is_of_file = " /" in line
            continue
        field, _, value = line.partition(":")
        if is_of_file and field in ("Rss", "Referenced", "Anonymous"):
            kb[field] = int(value.split()[0])
            if field == "Anonymous":  # the last of the three
                unused_kb += max(0, kb["Rss"] - kb["Anonymous"] - kb["Referenced"])
    return unused_kb * 1024


def anonymous_bytes(process: Path = SELF) -> int:
    """Return the anonymous memory of this process, which the kernel cannot reclaim."""
    return _status_bytes(process, "RssAnon:")


def _status_bytes(process: Path, field: str) -> int:
    return int((process / "status").read_text().partition(field)[2].split()[0]) * 1024


def forget_peak(process: Path = SELF) -> None:
    """Reset the peak resident memory, and which pages were used; does nothing where the kernel does not allow it."""
    with suppress(OSError):
        (process / "clear_refs").write_text("5")
        (process / "clear_refs").write_text("1")
