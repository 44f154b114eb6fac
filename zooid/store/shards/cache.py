"""The cache of shards on this machine, in a folder that all of its processes share.

A shard is present if its table is: the table is written last and removed first. A process that fetches a shard holds
its lock, so that no other fetches it too; the kernel frees the lock of a process that dies. Removing a shard does not
disturb readers, since an open file stays readable.
"""

import fcntl
import hashlib
import re
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import getuid
from pathlib import Path

import msgspec

from zooid.core.errors import InputError, ObjectNotFound, RecordError, StoreUnavailable
from zooid.core.files import replaced_whole
from zooid.core.records import decode_record
from zooid.core.runs.shard import ShardTable, TarShard
from zooid.store.shards.archive import table_of
from zooid.store.store_protocol import ObjectStore

_SHARD_NAME = re.compile(r"[0-9a-f]{16}-.+\.tar")
"""Names of files that the cache may remove; the folder may contain other files."""
_BACKOFF_S = (0.2, 1.0, 5.0)
"""Pauses before a broken transfer is retried; the client has its own retries for each request."""


@dataclass(frozen=True)
class ShardCache:
    """A folder with the shards of any number of data sets."""

    folder: Path
    max_bytes: int | None
    """Limit on the bytes of all shards, above which the least recently opened are removed; None means no limit."""

    def tar(self, url: str, shard: TarShard) -> Path:
        """The path of a shard; its name changes when its entry in the index does."""
        digest = hashlib.blake2b(url.encode() + b"\0" + msgspec.json.encode(shard), digest_size=8).hexdigest()
        return self.folder / f"{digest}-{shard.key.rpartition('/')[2]}"

    def fetch(self, store: ObjectStore, shard: TarShard) -> None:
        """Fetch a shard, unless it is present."""
        tar = self.tar(store.url, shard)
        with _locked(_beside(tar, ".lock")):
            if read_table(tar, shard.num_samples) is not None:
                return
            for pause_s in _BACKOFF_S:
                try:
                    self._write(store, shard, tar)
                    break
                except StoreUnavailable:
                    time.sleep(pause_s)
            else:
                self._write(store, shard, tar)
        self._sweep()

    def _write(self, store: ObjectStore, shard: TarShard, tar: Path) -> None:
        discard(tar)
        md5 = hashlib.md5(usedforsecurity=False)
        with ExitStack() as room, replaced_whole(tar) as part:
            try:
                with open(part, "wb") as file:
                    for piece in store.stream(shard.key):
                        md5.update(piece)
                        file.write(piece)
                check_size(part, shard, store.url)
                if shard.md5 not in (None, md5.hexdigest()):
                    raise _mismatch(store.url, shard, f"the MD5 sum {md5.hexdigest()}", shard.md5)
                table = table_of(part, f"{store.url}/{shard.key}", with_checksums=True)
            except ObjectNotFound as error:
                raise missing(store.url, shard) from error
            except tarfile.TarError as error:
                raise damaged(store.url, shard, error) from error
            check_table(table, shard, store.url)
            room.enter_context(self._room_for(table.size_bytes))
        with replaced_whole(_beside(tar, ".json")) as part:
            part.write_bytes(msgspec.json.encode(table))

    @contextmanager
    def _room_for(self, size_bytes: int) -> Iterator[None]:
        """Make room for a shard of this size, which no other process takes inside the context."""
        if self.max_bytes is None:
            yield
            return
        with _locked(self.folder / "room.lock"):
            paths = [path for path in self.folder.iterdir() if _SHARD_NAME.fullmatch(path.name)]
            present = [(path.stat().st_mtime, path.stat().st_size, path) for path in paths]
            num_bytes = sum(size for _, size, _ in present) + size_bytes
            for _, size, path in sorted(present):
                if num_bytes <= self.max_bytes:
                    break
                discard(path)
                path.unlink(missing_ok=True)
                num_bytes -= size
            yield

    def _sweep(self) -> None:
        """Remove unfinished files of killed fetchers; a fetcher that still writes holds the lock."""
        for part in self.folder.glob("*.tar.part"):
            whole = part.with_suffix("")
            if _SHARD_NAME.fullmatch(whole.name):
                with suppress(BlockingIOError), _locked(_beside(whole, ".lock"), wait=False):
                    part.unlink(missing_ok=True)


def default_folder() -> Path:
    """The folder in the user's cache, or among temporary files if that cannot be written, as in a function."""
    with suppress(OSError, RuntimeError):
        folder = Path.home() / ".cache" / "zooid" / "shards"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.gettempdir()) / f"zooid-shards-{getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != getuid():  # anybody may write there, and the run would train on their files
        raise InputError(f"{folder} belongs to another user; give zooid.shards a folder of your own as `cache`")
    return folder


def is_here(tar: Path) -> bool:
    """Whether a shard was fetched, without checking its file."""
    return _beside(tar, ".json").exists()


def read_table(tar: Path, num_samples: int | None = None) -> ShardTable | None:
    """The table of a complete shard with as many samples as the index says; None if it is not present."""
    path = _beside(tar, ".json")
    try:
        table = decode_record(path.read_bytes(), ShardTable, str(path))
        is_whole = tar.stat().st_size == table.size_bytes and num_samples in (None, len(table.samples))
        return table if is_whole else None
    except (FileNotFoundError, RecordError):
        return None


def discard(tar: Path) -> None:
    """Forget a shard, so that it is fetched again."""
    _beside(tar, ".json").unlink(missing_ok=True)


def check_size(path: Path, shard: TarShard, url: str) -> None:
    """Reject a shard whose size is not that in the index."""
    size_bytes = path.stat().st_size
    if shard.size_bytes not in (None, size_bytes):
        raise _mismatch(url, shard, f"{size_bytes} bytes", shard.size_bytes)


def check_table(table: ShardTable, shard: TarShard, url: str) -> ShardTable:
    """Reject a shard whose number of samples is not that in the index."""
    if len(table.samples) != shard.num_samples:
        raise _mismatch(url, shard, f"{len(table.samples)} samples", shard.num_samples)
    return table


def missing(url: str, shard: TarShard) -> ObjectNotFound:
    return ObjectNotFound(f"the shard {url}/{shard.key} is missing, which the index names; {_advice(url)}")


def damaged(url: str, shard: TarShard, error: Exception) -> InputError:
    return InputError(f"the shard {url}/{shard.key} is not a complete tar file ({error}); {_advice(url)}")


def _mismatch(url: str, shard: TarShard, actual: str, indexed: object) -> InputError:
    return InputError(f"the shard {url}/{shard.key} has {actual}, but the index says {indexed}; {_advice(url)}")


def _advice(url: str) -> str:
    return f"restore it, or make the index again with zooid.index_shards({url!r})"


def _beside(tar: Path, suffix: str) -> Path:
    return tar.with_name(tar.name + suffix)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
