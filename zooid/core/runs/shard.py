"""Records of tar shards: their entries in the index of a data set, and the samples inside them."""

import msgspec

from zooid.core.records import FileRecord, Record, require, require_at_least
from zooid.core.text import printable, quoted

SHARDS_PER_WINDOW = 4
"""Number of shards among which samples are shuffled at a time. More would shuffle better, but a machine keeps two
windows: one that is read, and the next one that is fetched."""

_FORBIDDEN_PARTS = frozenset({"", ".", ".."})
_HEADER_BYTES = 512
"""Size of the header that a tar file has for each file; a sample has at least one file."""
MAX_SAMPLES = 2**40 // _HEADER_BYTES
"""Maximum number of samples in a shard of unknown size: as many as fit into 1 TiB."""


class TarShard(Record, frozen=True, kw_only=True):
    """One shard in the index of its folder."""

    key: str
    """Key of its object, relative to the folder."""
    num_samples: int
    size_bytes: int | None = None
    """Size of the shard; None if the index does not give it."""
    md5: str | None = None

    def __post_init__(self) -> None:
        key = quoted(self.key)
        require(
            self.key.endswith(".tar"),
            f"{key!r} is not a .tar file; samples are read by their offsets, which compressed shards do not have: "
            "decompress them",
        )
        require(
            not _FORBIDDEN_PARTS.intersection(self.key.split("/"))
            and not any(c in "\n\t" for c in self.key)
            and printable(self.key) == self.key,
            f"{key!r} is not the name of a shard below its folder; join names by single /, without . and .. "
            "and control characters",
        )
        require_at_least(0, self, "num_samples", "size_bytes", of=key)
        max_samples = MAX_SAMPLES if self.size_bytes is None else self.size_bytes // _HEADER_BYTES
        require(
            self.num_samples <= max_samples,
            f"{key} has {quoted(str(self.num_samples))} samples, but a tar file of its size has at most {max_samples}",
        )


class SampleFiles(msgspec.Struct, frozen=True, array_like=True):
    """The files of one sample in a shard. It is an array in JSON, because a shard may have tens of thousands."""

    name: str
    """Common stem of the files, such as `000001`."""
    crc: int | None
    """CRC-32 of the concatenated files; None if nobody has read them yet."""
    fields: tuple[tuple[str, int, int], ...]
    """Extension without its dot, offset and bytes of each file."""


class ShardTable(FileRecord, frozen=True, kw_only=True, tag="shard-table"):
    """Locations of all samples in a shard, written beside a shard that was fetched completely."""

    size_bytes: int
    samples: tuple[SampleFiles, ...]

    def __post_init__(self) -> None:
        for sample in self.samples:
            for _, offset, size in sample.fields:
                require(
                    offset >= 0 and 0 <= size <= self.size_bytes - offset,
                    f"`samples` has {quoted(str(size))} bytes at offset {quoted(str(offset))}; the shard has "
                    f"{self.size_bytes} bytes",
                )
