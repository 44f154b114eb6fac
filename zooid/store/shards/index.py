"""The index of a folder of shards: how many samples each of them holds.

It is the JSON file that webdataset's `widsindex` writes, under the name that it gives, so that an index made by either
serves both. Whoever wants the samples in random order has to know their number before the first shard is read.
"""

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.shards import TarShard
from zooid.store.objects import open_store
from zooid.store.protocol import Data, ObjectStore
from zooid.store.shards.archive import samples_of

INDEX_NAME = "shardindex.json"
_NUM_AT_ONCE = 4
"""Shards that are counted at the same time, each in a few MiB of memory."""


class _Entry(msgspec.Struct, omit_defaults=True):
    url: str
    nsamples: int
    filesize: int | None = None
    md5sum: str | None = None


class _Index(msgspec.Struct, omit_defaults=True):
    """The fields that zooid knows; others are ignored, since the format is not its own."""

    wids_version: int
    shardlist: list[_Entry] = []
    base: str | None = None
    datasets: list[Any] = []


def index_shards(url: str, *, on_progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Count the samples of every .tar file below a folder and write its index there; the number of samples.

    Every shard is read once, as a stream. `on_progress` is called with the number of shards that are counted and that
    of all of them.
    """
    store = open_folder(url)
    keys = [key for key in store.list("") if key.endswith(".tar")]
    if not keys:
        raise InputError(f"there is no .tar file in {store.url}; give the folder that holds the shards")
    entries: list[_Entry] = []
    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        for entry in pool.map(lambda key: _count(store, key), keys):
            entries.append(entry)
            on_progress(len(entries), len(keys))
    index = msgspec.json.encode(_Index(wids_version=1, shardlist=entries))
    store.put(INDEX_NAME, msgspec.json.format(index, indent=2) + b"\n")
    return sum(entry.nsamples for entry in entries)


def open_folder(url: str) -> ObjectStore:
    """The store of a folder that exists: opening one to write to would create it."""
    if url.startswith("file://") and not Path(_path(url)).is_dir():
        raise InputError(f"there is no folder {url}; give the one that holds the shards")
    return open_store(url)


def read_index(store: ObjectStore, name: str) -> tuple[TarShard, ...]:
    """The shards of a folder, in the order of its index."""
    source = f"{store.url}/{name}"
    advice = f"make it with zooid.index_shards({store.url!r})"
    try:
        content = bytes(store.get(name))
    except ObjectNotFound as error:
        raise InputError(
            f"there is no {name} in {store.url}, which says how many samples each shard holds; {advice}"
        ) from error
    try:
        index = msgspec.json.decode(content, type=_Index)
        if index.wids_version != 1 or index.datasets:
            what = "a list of other indices" if index.datasets else f"of version {index.wids_version}"
            raise InputError(f"{source} is {what}; zooid reads lists of shards of version 1: {advice}")
        shards = tuple(
            TarShard(
                key=_key(store.url, index.base, entry.url, source),
                num_samples=entry.nsamples,
                size_bytes=entry.filesize,
                md5=entry.md5sum,
            )
            for entry in index.shardlist
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not an index of shards ({error}); {advice}") from error
    if not any(shard.num_samples for shard in shards):
        raise InputError(f"{source} names no samples; {advice}")
    return shards


def _key(folder: str, base: str | None, url: str, source: str) -> str:
    """A shard's key below the folder: the index may name it relative to itself, to its `base`, or by its whole URL."""
    url = url if base is None or "://" in url else f"{base.rstrip('/')}/{url}"
    if url.startswith("/"):
        url = f"file://{url}"
    if "://" in url:
        key = _path(url).removeprefix(_path(folder) + "/") if _place(url) == _place(folder) else url
    else:
        key = posixpath.normpath(url)
    if "://" in key or key.startswith(("../", "/")):
        raise InputError(
            f"{source} names the shard {url}, which is not below {folder}; keep an index beside its shards"
        )
    return key


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _path(url: str) -> str:
    return unquote(urlsplit(url).path).rstrip("/")


def _count(store: ObjectStore, key: str) -> _Entry:
    pieces = _Pieces(store.stream(key))
    try:
        with tarfile.open(fileobj=pieces, mode="r|") as archive:  # type: ignore[call-overload]
            num_samples = sum(1 for _ in samples_of(archive, f"{store.url}/{key}"))
    except tarfile.TarError as error:
        raise InputError(f"{store.url}/{key} is not a whole tar file ({error}); write it again") from error
    pieces.read_rest()
    return _Entry(key, num_samples, pieces.num_bytes, pieces.md5.hexdigest())


class _Pieces:
    """A stream of pieces as a file to read from, which notes how much that was and its sum."""

    def __init__(self, pieces: Iterator[Data]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self.num_bytes = 0
        self.md5 = hashlib.md5(usedforsecurity=False)

    def read(self, size: int) -> bytes:
        parts = []
        while size > 0 and (self._rest or self._next()):
            parts.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(parts[-1])
        return b"".join(parts)

    def read_rest(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self.num_bytes += len(piece)
        self.md5.update(piece)
        self._rest = memoryview(piece)
        return True
