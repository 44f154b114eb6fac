"""Archives of the code that travels with a run: the job's folder, and zooid itself.

The same files always give the same bytes, and so the same digest: names are sorted, and times, owners and permissions
are left out. Only another release of the compression library may compress them differently, which costs one upload.
So does a module of zooid that was compiled since.
"""

import functools
import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from zooid.coordinator.job_files.code_files import CodeFile, CodeFolder, search_folder
from zooid.coordinator.job_files.compiled_modules import compiled_modules
from zooid.coordinator.job_files.secret_names import is_secret
from zooid.core.errors import InputError
from zooid.core.runs.code import MAX_CODE_BYTES, MAX_CODE_FILES, CodeArchive
from zooid.core.text import quoted

_PACKAGE = Path(__file__).parents[2]
_MEMBERS_PACKAGES = {"comm", "core", "entry", "layers", "schedule", "store", "worker"}
"""Packages of zooid that every member imports. They travel compiled, too."""
_COMPRESSION_LEVEL = 4
"""Higher levels take up to 40 % longer for archives that are 6 % smaller."""
_FILE_MODE, _PROGRAM_MODE, _LINK_MODE = 0o644, 0o755, 0o777
_NO_FILES: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True)
class Archive:
    """An archive of code, and what was left out of it."""

    data: bytes
    record: CodeArchive
    secrets: tuple[str, ...] = ()
    """Files, and folders with a trailing slash, that were left out because they have the names of secrets."""
    outside_links: tuple[str, ...] = ()
    """Symbolic links that were left out because they lead out of the folder."""


def archive_of_folder(
    root: Path,
    extra: Mapping[str, bytes] = _NO_FILES,
    *,
    required: Iterable[str] = (),
    max_bytes: int = MAX_CODE_BYTES,
) -> Archive:
    """Pack a job's folder.

    `extra` adds generated files, by their paths in the archive; they replace files of the folder. `required` names
    files of the folder that travel even if git ignores them, such as the job file. A symbolic link that stays inside
    the folder remains a link. One that leads out of it is left out and named in `outside_links`, because its target
    does not exist on another machine.
    """
    folder = search_folder(root)
    for name in required:
        _require(folder, name)
    if not folder.is_complete:
        raise folder.too_large(max_bytes)
    files = {name: file for name, file in folder.files.items() if not any(_hides(name, other) for other in extra)}
    num_bytes = sum(file.size_bytes for file in files.values()) + sum(map(len, extra.values()))
    if num_bytes > max_bytes or len(files) + len(extra) > MAX_CODE_FILES:
        raise folder.too_large(max_bytes)
    return _packed(folder, _entries(folder, files, extra, max_bytes))


@functools.cache
def archive_of_zooid() -> Archive:
    """Pack the installed package of zooid, under the name `zooid/`, once per process."""
    folder = search_folder(_PACKAGE, uses_git=False)
    modules = (name for name in folder.files if name.endswith(".py") and name.partition("/")[0] in _MEMBERS_PACKAGES)
    compiled = compiled_modules(_PACKAGE, modules)
    return _packed(folder, _entries(folder, folder.files, compiled, prefix="zooid/"))


def _packed(folder: CodeFolder, entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> Archive:
    buffer, num_files = io.BytesIO(), 0
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION_LEVEL, fileobj=buffer, mtime=0) as compressed,
        tarfile.open(
            mode="w", fileobj=compressed, format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        ) as tar,
    ):
        for header, content in entries:
            tar.addfile(header, io.BytesIO(content))
            num_files += 1
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    return Archive(
        data=data,
        record=CodeArchive(digest=digest, num_bytes=len(data), num_files=num_files),
        secrets=tuple(sorted(folder.secrets)),
        outside_links=tuple(sorted(folder.outside_links)),
    )


def _entries(
    folder: CodeFolder,
    files: Mapping[str, CodeFile],
    extra: Mapping[str, bytes] = _NO_FILES,
    max_bytes: int = MAX_CODE_BYTES,
    prefix: str = "",
) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield header and content of each file, sorted by name."""
    num_bytes = 0
    for name in sorted({*files, *extra}):
        header = tarfile.TarInfo(prefix + name)  # its time and owners are 0
        header.mode = _FILE_MODE
        if name in extra:
            content: bytes | None = extra[_checked(name)]
        elif (target := files[name].link_target) is not None:
            header.type, header.linkname, header.mode, content = tarfile.SYMTYPE, target, _LINK_MODE, b""
        else:
            content = _read(folder.root / name)
            if files[name].is_executable:
                header.mode = _PROGRAM_MODE
        if content is not None:
            header.size = len(content)
            num_bytes += len(content)
            if num_bytes > max_bytes:  # a file has grown meanwhile
                raise folder.too_large(max_bytes)
            yield header, content


def _read(path: Path) -> bytes | None:
    """Read a file; None if it has vanished since the folder was searched."""
    try:
        # neither a link nor a pipe that somebody has put there meanwhile is followed or waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:
            return opened.read(MAX_CODE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{quoted(str(path))} cannot be read ({error.strerror}), but belongs to the code of the job; make it "
            "readable, or name it in a .gitignore"
        ) from error


def _require(folder: CodeFolder, name: str) -> None:
    """Add a file of the folder that git may ignore."""
    if _checked(name) in folder.files:
        return
    path = folder.root / name
    if any(map(is_secret, [name, *map(str, PurePosixPath(name).parents)])):
        raise InputError(f"{quoted(str(path))} is named like a secret, and secrets never travel; rename it")
    if path.resolve() != path or not path.is_file():
        raise InputError(
            f"{quoted(str(path))} does not exist, or is behind a symbolic link that does not travel; put the file "
            f"itself into the job's folder {folder.root}"
        )
    status = path.stat()
    folder.files[name] = CodeFile(name, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _hides(name: str, other: str) -> bool:
    """Whether a file of this name cannot be in an archive beside the other."""
    return name == other or name.startswith(f"{other}/") or other.startswith(f"{name}/")


def _checked(name: str) -> str:
    is_inside = not name.startswith("/") and not {"", ".", ".."}.intersection(name.split("/"))
    assert is_inside, f"{name!r} is not a path inside an archive"
    return name
