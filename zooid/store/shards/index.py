"""The index of a folder of shards: the number of samples in each, which a random order needs in advance.

It is the JSON file that webdataset's `widsindex` writes, with the same name, so that each reads the other's index.
"""

import posixpath
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from zooid.core.errors import InputError, ObjectNotFound, RecordError
from zooid.core.records import decode_json
from zooid.core.runs.shard import TarShard
from zooid.core.text import quoted
from zooid.store.objects import open_store
from zooid.store.shards.archive import samples_of
from zooid.store.shards.tar_stream import ObjectStream, opened_archive
from zooid.store.store_protocol import ObjectStore

INDEX_NAME = "shardindex.json"
_NUM_AT_ONCE = 4
"""Number of shards that are counted at the same time; each takes a few MiB of memory."""


class _Entry(msgspec.Struct, omit_defaults=True):
    url: str
    nsamples: int
    filesize: int | None = None
    md5sum: str | None = None


class _Index(msgspec.Struct, omit_defaults=True):
    """The fields that zooid uses; others are ignored, since the format belongs to webdataset."""

    wids_version: int
    shardlist: list[_Entry] = []
    base: str | None = None
    datasets: list[Any] = []


def index_shards(url: str, *, on_progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Count the samples of every .tar file below a folder, write its index there, and return the total.

    Every shard is read once, as a stream. `on_progress` gets the number of counted shards and of all shards.
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
    """Open a folder that must exist; `open_store` alone would create it."""
    if url.startswith("file://") and not Path(_path(url)).is_dir():
        raise InputError(f"there is no folder {url}; give the one that holds the shards")
    return open_store(url)


def read_index(store: ObjectStore, name: str) -> tuple[TarShard, ...]:
    """The shards of a folder, in index order."""
    source = f"{store.url}/{name}"
    advice = f"make it with zooid.index_shards({store.url!r})"
    try:
        content = bytes(store.get(name))
    except ObjectNotFound as error:
        raise InputError(
            f"there is no {name} in {store.url}, which has the number of samples of each shard; {advice}"
        ) from error
    try:
        index: _Index = decode_json(content, _Index, source, "an index of shards")
        if index.wids_version != 1 or index.datasets:
            what = "a list of other indices" if index.datasets else f"of version {quoted(str(index.wids_version))}"
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
    except RecordError as error:
        raise InputError(f"{error}; {advice}") from error
    if not any(shard.num_samples for shard in shards):
        raise InputError(f"{source} names no samples; {advice}")
    return shards


def _key(folder: str, base: str | None, url: str, source: str) -> str:
    """The key of a shard in the folder; the index may name it relative to itself, to `base`, or by a full URL."""
    url = url if base is None or "://" in url else f"{base.rstrip('/')}/{url}"
    if url.startswith("/"):
        url = f"file://{url}"
    try:
        key = posixpath.normpath(_below(folder, url) if "://" in url else url)
    except ValueError:  # urlsplit rejects an invalid host
        key = ".."
    if key in (".", "..") or key.startswith(("../", "/")):
        raise InputError(
            f"{source} names the shard {quoted(url)}, which is not below {folder}; keep an index beside its shards"
        )
    return key


def _below(folder: str, url: str) -> str:
    """The path of a URL relative to a folder; `..` if it is not below it."""
    parent, child = urlsplit(folder), urlsplit(url)
    path, prefix = posixpath.normpath(_path(url)), _path(folder) + "/"
    is_below = (parent.scheme, parent.netloc) == (child.scheme, child.netloc) and path.startswith(prefix)
    return path.removeprefix(prefix) if is_below else ".."


def _path(url: str) -> str:
    return unquote(urlsplit(url).path).rstrip("/")


def _count(store: ObjectStore, key: str) -> _Entry:
    stream = ObjectStream(store.stream(key))
    try:
        with opened_archive(stream) as archive:
            num_samples = sum(1 for _ in samples_of(archive, f"{store.url}/{key}"))
    except tarfile.TarError as error:
        raise InputError(f"{store.url}/{key} is not a complete tar file ({error}); write it again") from error
    stream.read_rest()
    return _Entry(key, num_samples, stream.num_bytes, stream.md5.hexdigest())
