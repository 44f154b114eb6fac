"""Shards that were fetched to this machine, in a folder that all of its processes share.

A shard is there when its table is; the table is written last and removed first. Whoever fetches a shard holds its lock,
so that nobody fetches it twice, and the kernel frees the lock of a process that dies. Removing a shard disturbs no
reader: a file that is open stays readable.
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

_OWN_FILE = re.compile(r"[0-9a-f]{16}-.+\.tar")
"""What the cache may remove; a folder that somebody names may hold other things."""
_PAUSES_S = (0.2, 1.0, 5.0)
"""Before a shard whose transfer broke off is fetched again; the client has its own retries for each request."""


@dataclass(frozen=True)
class ShardCache:
    """A folder with the shards of any number of data sets."""

    folder: Path
    max_bytes: int | None
    """Of whole shards; above it, those that were not opened for longest are removed. None removes nothing."""

    def tar(self, url: str, shard: TarShard) -> Path:
        """Where a shard lies; its name changes when its entry in the index does."""
        digest = hashlib.blake2b(url.encode() + b"\0" + msgspec.json.encode(shard), digest_size=8).hexdigest()
        return self.folder / f"{digest}-{shard.key.rpartition('/')[2]}"

    def fetch(self, store: ObjectStore, shard: TarShard) -> None:
        """Bring a shard here, unless it already is."""
        tar = self.tar(store.url, shard)
        with _locked(_beside(tar, ".lock")):
            if read_table(tar, shard.num_samples) is not None:
                return
            for pause_s in _PAUSES_S:
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
        with ExitStack() as until_in_place, replaced_whole(tar) as part:
            try:
                with open(part, "wb") as file:
                    for piece in store.stream(shard.key):
                        md5.update(piece)
                        file.write(piece)
                check_size(part, shard, store.url)
                if shard.md5 not in (None, md5.hexdigest()):
                    raise _other(store.url, shard, f"the MD5 sum {md5.hexdigest()}", shard.md5)
                table = table_of(part, f"{store.url}/{shard.key}", with_checksums=True)
            except ObjectNotFound as error:
                raise missing(store.url, shard) from error
            except tarfile.TarError as error:
                raise damaged(store.url, shard, error) from error
            check_table(table, shard, store.url)
            until_in_place.enter_context(self._room_for(table.size_bytes))
        with replaced_whole(_beside(tar, ".json")) as part:
            part.write_bytes(msgspec.json.encode(table))

    @contextmanager
    def _room_for(self, size_bytes: int) -> Iterator[None]:
        """Inside, a shard of this size may be put in place; nobody else makes or takes room meanwhile."""
        if self.max_bytes is None:
            yield
            return
        with _locked(self.folder / "room.lock"):
            found = []
            for path in self.folder.iterdir():
                if _OWN_FILE.fullmatch(path.name):
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
            num_bytes = sum(size for _, size, _ in found) + size_bytes
            for _, size, path in sorted(found):
                if num_bytes <= self.max_bytes:
                    break
                discard(path)
                path.unlink(missing_ok=True)
                num_bytes -= size
            yield

    def _sweep(self) -> None:
        """Remove what fetchers left unfinished that were killed; whoever still writes holds the lock."""
        for part in self.folder.glob("*.tar.part"):
            whole = part.with_suffix("")
            if _OWN_FILE.fullmatch(whole.name):
                with suppress(BlockingIOError), _locked(_beside(whole, ".lock"), wait=False):
                    part.unlink(missing_ok=True)


def default_folder() -> Path:
    """In the user's cache, or among temporary files where there is none that can be written, as in a function."""
    with suppress(OSError, RuntimeError):
        folder = Path.home() / ".cache" / "zooid" / "shards"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.gettempdir()) / f"zooid-shards-{getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != getuid():  # everybody may write there, and what lies there is trained on
        raise InputError(f"{folder} belongs to another user; give zooid.shards a folder of your own as `cache`")
    return folder


def is_here(tar: Path) -> bool:
    """Whether a shard was fetched; without a look at what it has become since."""
    return _beside(tar, ".json").exists()


def read_table(tar: Path, num_samples: int | None = None) -> ShardTable | None:
    """The table of a shard that is here whole, with as many samples as the index says; None where it is not."""
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
    """Refuse a shard that is shorter or longer than the one of which the index speaks."""
    size_bytes = path.stat().st_size
    if shard.size_bytes not in (None, size_bytes):
        raise _other(url, shard, f"{size_bytes} bytes", shard.size_bytes)


def check_table(table: ShardTable, shard: TarShard, url: str) -> ShardTable:
    """Refuse a shard whose samples are not those that the index counted."""
    if len(table.samples) != shard.num_samples:
        raise _other(url, shard, f"{len(table.samples)} samples", shard.num_samples)
    return table


def missing(url: str, shard: TarShard) -> ObjectNotFound:
    return ObjectNotFound(f"the shard {url}/{shard.key} is missing, which the index names; {_advice(url)}")


def damaged(url: str, shard: TarShard, error: Exception) -> InputError:
    return InputError(f"the shard {url}/{shard.key} is not a whole tar file ({error}); {_advice(url)}")


def _other(url: str, shard: TarShard, found: str, indexed: object) -> InputError:
    return InputError(f"the shard {url}/{shard.key} has {found}, but the index says {indexed}; {_advice(url)}")


def _advice(url: str) -> str:
    return f"restore it, or make the index again with zooid.index_shards({url!r})"


def _beside(tar: Path, suffix: str) -> Path:
    return tar.with_name(tar.name + suffix)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
