"""Data sets as tar shards: what is known of a shard before it is read, and once it lies on this machine."""

import msgspec

from zooid.core.records import FileRecord, Record, require

SHARDS_PER_WINDOW = 4
"""Samples are shuffled among so many shards at a time. More would shuffle better; but all shards of a window are read
at once, while those of the next one are fetched, so a machine keeps twice as many."""


class TarShard(Record, frozen=True, kw_only=True):
    """One shard as the index of its folder has it."""

    key: str
    """Of its object, below the folder."""
    num_samples: int
    size_bytes: int | None = None
    """None where whoever made the index did not say."""
    md5: str | None = None

    def __post_init__(self) -> None:
        require(self.num_samples >= 0, f"a shard of {self.num_samples} samples; it must be 0 or more")
        require(
            self.key.endswith(".tar"),
            f"{self.key!r} is not a .tar file; samples are read by their offset, which compressed shards do not have: "
            "unpack them",
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
