"""Data sets as tar shards: what is known of a shard before it is read, and once it lies on this machine."""

import msgspec

from zooid.core.records import FileRecord, Record, require
from zooid.core.text import printable, quoted

SHARDS_PER_WINDOW = 4
"""Samples are shuffled among so many shards at a time. More would shuffle better; but all shards of a window are read
at once, while those of the next one are fetched, so a machine keeps twice as many."""

_REFUSED_NAMES = frozenset({"", ".", ".."})
_HEADER_BYTES = 512
"""A tar file has one header of so many bytes for each file, and a sample has a file at least."""
MOST_SAMPLES = 2**40 // _HEADER_BYTES
"""The most samples of a shard whose size is not known: as many as fit into 1 TiB."""


class TarShard(Record, frozen=True, kw_only=True):
    """One shard as the index of its folder has it."""

    key: str
    """Of its object, below the folder."""
    num_samples: int
    size_bytes: int | None = None
    """None where whoever made the index did not say."""
    md5: str | None = None

    def __post_init__(self) -> None:
        key = quoted(self.key)
        require(
            self.key.endswith(".tar"),
            f"{key!r} is not a .tar file; samples are read by their offset, which compressed shards do not have: "
            "unpack them",
        )
        require(
            not _REFUSED_NAMES.intersection(self.key.split("/"))
            and not any(c in "\n\t" for c in self.key)
            and printable(self.key) == self.key,
            f"{key!r} is not the name of a shard below its folder; write names joined by single /, without . and .. "
            "and control characters",
        )
        require(self.num_samples >= 0, f"a shard of {self.num_samples} samples; it must be 0 or more")
        require(self.size_bytes is None or self.size_bytes >= 0, f"{key} has {self.size_bytes} bytes; give 0 or more")
        most = MOST_SAMPLES if self.size_bytes is None else self.size_bytes // _HEADER_BYTES
        require(
            self.num_samples <= most,
            f"{key} has {quoted(str(self.num_samples))} samples, but a tar file of its size has at most {most}",
        )


class SampleFiles(msgspec.Struct, frozen=True, array_like=True):
    """Where the files of one sample lie in a shard. An array in JSON, for a shard may have tens of thousands."""

    name: str
    """What its files have in common, such as `000001`."""
    crc: int | None
    """CRC-32 of the files' bytes, one after the other; None where nobody has read them yet."""
    fields: tuple[tuple[str, int, int], ...]
    """Extension without its dot, offset and bytes of each file."""


class ShardTable(FileRecord, frozen=True, kw_only=True, tag="shard-table"):
    """Where each sample of a shard lies; written beside a shard that has arrived whole."""

    size_bytes: int
    samples: tuple[SampleFiles, ...]

    def __post_init__(self) -> None:
        for sample in self.samples:
            for _, offset, size in sample.fields:
                require(
                    offset >= 0 and 0 <= size <= self.size_bytes - offset,
                    f"`samples` has {quoted(str(size))} bytes at {quoted(str(offset))} of {self.size_bytes}",
                )
