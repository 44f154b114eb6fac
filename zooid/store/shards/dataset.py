"""A map-style data set over tar shards, in a bucket or a folder."""

import bisect
import itertools
import operator
import os
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from zooid.core.errors import InputError, JobError, StoreError
from zooid.core.runs.shard import SHARDS_PER_WINDOW, ShardTable, TarShard
from zooid.core.units import format_bytes
from zooid.store.shards.archive import read_sample, table_of
from zooid.store.shards.cache import (
    ShardCache,
    check_size,
    check_table,
    damaged,
    default_folder,
    discard,
    is_here,
    missing,
    read_table,
)
from zooid.store.shards.fetcher import Fetcher
from zooid.store.shards.index import INDEX_NAME, open_folder, read_index

_NUM_HELD = 2 * SHARDS_PER_WINDOW
"""Number of shards that a process keeps open, and that a cache must have room for: those of two windows."""

_NUM_TRIES = 5
"""Number of attempts to fetch and open a shard, which other processes may remove in between."""

Decode = Callable[[dict[str, bytes]], Any]


def shards(
    url: str, decode: Decode, *, cache: str | Path | None = None, cache_bytes: int | None = None
) -> "ShardedData":
    """The samples of a folder of tar shards as a map-style data set; give it as `data=lambda: zooid.shards(…)`.

    `decode` gets the files of one sample, by extension, and returns (inputs, target). Shards are fetched when needed,
    and kept in the folder `cache`, which all processes of a machine share. Its default is the user's cache, or none for
    shards that are local files. `cache_bytes` limits the folder. `url` may also name the index.
    """
    if not callable(decode):
        raise InputError(f"`decode` is {decode!r}; it must be a callable: (files of a sample, by extension) -> sample")
    if cache_bytes is not None and cache_bytes < 1:
        raise InputError(f"`cache_bytes` is {cache_bytes}; give a number of bytes above 0, or None for no limit")
    if url.startswith("memory://"):
        raise InputError(f"{url} exists in one process only; give shards in a bucket or a folder")
    folder, _, name = url.rpartition("/") if url.endswith(".json") else (url.rstrip("/"), "", INDEX_NAME)
    store = open_folder(folder)
    entries = read_index(store, name)
    if folder.startswith("file://") and cache is None:
        return ShardedData(entries, decode, _LocalShards(store.url))
    largest_bytes = sum(sorted((shard.size_bytes or 0 for shard in entries), reverse=True)[:_NUM_HELD])
    if cache_bytes is not None and cache_bytes < largest_bytes:
        raise InputError(
            f"`cache_bytes` is {format_bytes(cache_bytes)}, but {_NUM_HELD} shards of {url} are in use at a time, "
            f"{format_bytes(largest_bytes)} together; give at least that, or make smaller shards"
        )
    return ShardedData(entries, decode, _CachedShards(store.url, ShardCache(_cache_folder(cache), cache_bytes)))


class ShardedData:
    """Samples by number, over all shards in index order."""

    def __init__(self, entries: tuple[TarShard, ...], decode: Decode, source: "_LocalShards") -> None:
        self.shard_sizes = tuple(shard.num_samples for shard in entries)
        """Number of samples in each shard, by which a run shuffles them so that few shards are in use at a time."""
        self._entries = entries
        self._ends = [*itertools.accumulate(self.shard_sizes)]
        self._decode = decode
        self._source = source
        self._held: dict[int, _OpenShard] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} of a data set of {len(self)}")
        shard = bisect.bisect_right(self._ends, number)
        index_in_shard = number - (self._ends[shard - 1] if shard else 0)
        name, files = self._read(shard, index_in_shard)
        try:
            return self._decode(files)
        except Exception as error:
            raise JobError(
                f"`decode` raised {type(error).__name__}: {error} for sample {number}, which is {name!r} of the shard "
                f"{self._entries[shard].key} and has {', '.join(f'.{field}' for field in files)}; fix it or `decode`"
            ) from error

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Fetch shards in the background that will be needed soon."""
        self._source.expect([self._entries[number] for number in numbers])

    def close(self) -> None:
        """End the fetcher of this process and close its files; both are restarted when needed."""
        self._held.clear()
        self._source.close()

    def _read(self, number: int, index_in_shard: int) -> tuple[str, dict[str, bytes]]:
        """Read a sample; a damaged one is read again, first from a copy that others may have fetched since."""
        entry = self._entries[number]
        for attempt in range(3):
            opened = self._held.get(number) or self._source.open(entry)
            sample = opened.table.samples[index_in_shard]
            files = read_sample(opened.descriptor, sample)
            if files is not None:
                self._hold(number, opened)
                return sample.name, files
            self._held.pop(number, None)
            if attempt > 0:
                self._source.discard(entry)
        raise StoreError(
            f"sample {sample.name!r} of the shard {entry.key} reads differently each time it is fetched; check "
            "the disk of the cache, and whether the shard is being written"
        )

    def _hold(self, number: int, opened: "_OpenShard") -> None:
        self._held.pop(number, None)  # the most recently used shard is last
        self._held[number] = opened
        while len(self._held) > _NUM_HELD:
            self._held.pop(next(iter(self._held)), None)


class _OpenShard:
    """The file of a shard, open as long as this object exists."""

    def __init__(self, path: Path, table: ShardTable) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.table = table

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class _LocalShards:
    """Shards that are local files, read in place."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, shard: TarShard) -> _OpenShard:
        path = Path(unquote(urlsplit(self._url).path), shard.key)
        try:
            check_size(path, shard, self._url)
            table = table_of(path, f"{self._url}/{shard.key}", with_checksums=False)
            return _OpenShard(path, check_table(table, shard, self._url))
        except FileNotFoundError as error:
            raise missing(self._url, shard) from error
        except tarfile.TarError as error:
            raise damaged(self._url, shard, error) from error
        except OSError as error:
            raise InputError(f"the shard {self._url}/{shard.key} cannot be read: {error.strerror}") from error

    def expect(self, shards: Iterable[TarShard]) -> None:
        """Fetch shards in the background; local files need none of it."""

    def discard(self, shard: TarShard) -> None:
        """Forget a damaged copy; a local file is read again anyway."""

    def close(self) -> None:
        """End what was started to fetch shards; nothing was."""


class _CachedShards(_LocalShards):
    """Shards of a bucket, fetched to this machine."""

    def __init__(self, url: str, cache: ShardCache) -> None:
        super().__init__(url)
        self._cache = cache
        self._fetcher = Fetcher(url, cache)

    def open(self, shard: TarShard) -> _OpenShard:
        tar = self._cache.tar(self._url, shard)
        for _ in range(_NUM_TRIES):
            table = read_table(tar, shard.num_samples)
            if table is not None:
                with suppress(FileNotFoundError):  # another process has just removed it
                    opened = _OpenShard(tar, table)
                    os.utime(opened.descriptor)
                    return opened
            self._fetcher.need(shard)
        raise StoreError(
            f"the shard {self._url}/{shard.key} was fetched {_NUM_TRIES} times, and removed from {self._cache.folder} "
            "before it could be opened; other processes need the room: raise `cache_bytes`, or give another cache"
        )

    def expect(self, shards: Iterable[TarShard]) -> None:
        absent = [shard for shard in shards if not is_here(self._cache.tar(self._url, shard))]
        if absent:
            self._fetcher.expect(absent)

    def discard(self, shard: TarShard) -> None:
        discard(self._cache.tar(self._url, shard))

    def close(self) -> None:
        self._fetcher.close()


def _cache_folder(cache: str | Path | None) -> Path:
    if cache is None:
        return default_folder()
    try:
        Path(cache).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the cache {cache} cannot be created: {error.strerror}; give another folder") from error
    return Path(cache).resolve()
