"""Code that travels with a run, unpacked once for all processes of a machine."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from zooid.core.errors import InputError, StoreError
from zooid.core.runs import keys
from zooid.core.runs.code import check_digest
from zooid.entry.code_entries import CodeEntry, decode_code

_FILE_MODE, _PROGRAM_MODE = 0o644, 0o755


def unpacked(fetch: Callable[[str], bytes | memoryview], digest: str, folder: Path) -> Path:
    """Return the folder `folder/DIGEST` with the unpacked code of an archive.

    `fetch` gets the key of the archive, and is called at most once per machine, even if several processes ask at the
    same moment. Nothing is written unless the archive has this digest and is safe. The folder appears under its name
    when it is complete, so that a process which is killed meanwhile leaves nothing that another one would use.
    """
    check_digest(digest)
    target = folder / digest
    if target.is_dir():
        return target
    with _locked(folder, digest):
        if not target.is_dir():
            entries = _fetched(fetch, digest)
            with _errors_named(folder):
                _unpack(entries, target)
    return target


@contextmanager
def _locked(folder: Path, digest: str) -> Iterator[None]:
    """Let one process at a time unpack this archive; the kernel releases the lock even if the process is killed."""
    with _errors_named(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _errors_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"code cannot be unpacked into {folder} ({error.strerror}); free space there, or set TMPDIR on that machine"
        ) from error


def _fetched(fetch: Callable[[str], bytes | memoryview], digest: str) -> dict[str, CodeEntry]:
    """Fetch an archive and decode it; it must have this digest."""
    data = fetch(keys.code(digest))
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise StoreError(
            f"the code in {keys.code(digest)} has the digest {actual} instead of {digest}, so that it is not run; "
            "somebody has changed or damaged it in the store: start the run again"
        )
    return decode_code(data)


def _unpack(entries: Mapping[str, CodeEntry], target: Path) -> None:
    """Write all entries to another name first; only the process that holds the lock uses that name."""
    staged = target.with_name(f"{target.name}.part")
    if staged.exists():  # another process was killed while it unpacked
        shutil.rmtree(staged)
    try:
        staged.mkdir(mode=0o700)
        for name, entry in entries.items():
            path = staged / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.link_target is not None:
                path.symlink_to(entry.link_target)
                continue
            mode = _PROGRAM_MODE if entry.is_executable else _FILE_MODE
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, mode), "wb") as file:
                file.write(entry.content)
        staged.rename(target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
