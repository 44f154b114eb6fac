"""The files of a folder that travel with a run.

Where the folder is in a git repository, git says which files belong to it. Otherwise all files do. Secrets, caches,
virtual environments and the folders of runs never travel, even if git tracks them.
"""

import heapq
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from zooid.coordinator.job_files.git_listing import GitTooSlow, git_names, is_below_git
from zooid.coordinator.job_files.secret_names import is_secret
from zooid.core.errors import InputError
from zooid.core.runs import keys
from zooid.core.runs.code import MAX_CODE_FILES
from zooid.core.runs.spec import RunClaim
from zooid.core.text import quoted
from zooid.core.units import format_bytes

_MAX_LOOKS = 10 * MAX_CODE_FILES
"""Number of files and folders after which the search of a folder ends, whether they may travel or not."""
_MAX_CLAIM_BYTES = 1_000_000
_NUM_NAMED = 5
"""Number of the largest files that a message names."""

_CACHES = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".import_linter_cache",
     ".ipynb_checkpoints", ".hypothesis", ".cache", ".tox", ".nox", "node_modules", ".DS_Store"}
)  # fmt: skip
_COMPILED = (".pyc", ".pyo")
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
"""Names that only the folder of a virtual environment contains."""


@dataclass(frozen=True)
class CodeFile:
    """One file or symbolic link of a folder."""

    name: str
    """Path relative to the folder."""
    size_bytes: int = 0
    is_executable: bool = False
    link_target: str | None = None
    """The relative target of a symbolic link; None for a file."""


@dataclass
class CodeFolder:
    """What was found in a folder."""

    root: Path
    uses_git: bool
    files: dict[str, CodeFile] = field(default_factory=dict)
    """The files and links that may travel, by their names."""
    secrets: set[str] = field(default_factory=set)
    """Files, and folders with a trailing slash, that are left out because they have the names of secrets."""
    outside_links: set[str] = field(default_factory=set)
    """Symbolic links that are left out because they lead out of the folder."""
    is_complete: bool = True
    """False if the search ended early, because there are too many files."""

    @property
    def num_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def too_large(self, max_bytes: int) -> InputError:
        """Return the error for a folder whose files are too large or too many."""
        more_than = "" if self.is_complete else "more than "
        largest = heapq.nlargest(_NUM_NAMED, self.files.values(), key=lambda file: file.size_bytes)
        named = ", ".join(f"{quoted(file.name)} ({format_bytes(file.size_bytes)})" for file in largest) or "left out"
        num_files = len(self.files) if self.is_complete else min(len(self.files), MAX_CODE_FILES)
        ignore = "name what the job does not need in a .gitignore"
        if not self.uses_git:
            ignore = f"run git init there, and {ignore}"
        return InputError(
            f"the job's folder {self.root} has {more_than}{format_bytes(self.num_bytes)} in "
            f"{more_than}{num_files} file{'' if num_files == 1 else 's'}, but a run takes along at most "
            f"{format_bytes(max_bytes)} in {MAX_CODE_FILES} files; its largest files are {named}. To make it smaller, "
            f"{ignore} (files that git tracks already also need git rm --cached), or keep data in a store and read it "
            "with zooid.shards"
        )


def search_folder(root: Path, *, uses_git: bool = True) -> CodeFolder:
    """Search a folder for the files that travel with a run; a search of too many files ends early.

    A folder of which git ignores everything, as it does with a job in an ignored folder, is searched without git.
    """
    root = root.resolve()
    if not root.is_dir():
        raise InputError(f"the job's folder {root} is not a folder; give the path of a job file in a folder")
    if uses_git and is_below_git(root):
        try:
            if names := git_names(root):
                return _Search(CodeFolder(root, uses_git=True)).run(names)
        except GitTooSlow as error:
            found = _Search(CodeFolder(root, uses_git=False)).run()
            if found.is_complete:
                raise InputError(f"{error}; make it smaller with a .gitignore") from error
            found.uses_git = True
            return found
    return _Search(CodeFolder(root, uses_git=False)).run()


class _Search:
    """One search, which adds files to a CodeFolder until there are too many."""

    def __init__(self, found: CodeFolder) -> None:
        self._found = found
        self._root = str(found.root)
        self._keeps = {"": True}
        """Whether files of a folder may travel, by the folder's name."""
        self._pending = deque[str]()
        """Folders that are still to be listed."""

    def run(self, names: list[str] | None = None) -> CodeFolder:
        """Search the folder; git has listed these names, or None if git has no view of it."""
        listing: Iterator[str] | list[str] = self._entries("") if names is None else names
        num_looks = 0
        while True:
            for name in listing:
                num_looks += 1
                if num_looks > _MAX_LOOKS or len(self._found.files) > MAX_CODE_FILES:
                    self._found.is_complete = False
                    return self._found
                self._look(name.rstrip("/"), is_listed_by_git=names is not None)
            if not self._pending:
                return self._found
            folder = self._pending.popleft()
            names = self._names_in_repository(folder)
            listing = self._entries(folder) if names is None else names

    def _look(self, name: str, *, is_listed_by_git: bool) -> None:
        parent, _, last = name.rpartition("/")
        if not self._keeps_folder(parent) or last in _CACHES or last.endswith(_COMPILED):
            return
        path = f"{self._root}/{name}"
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):  # git tracks it, but it has been deleted
            return
        except OSError as error:
            raise _unreadable(path, error) from error
        if stat.S_ISDIR(status.st_mode):
            # git lists only repositories inside this one as folders, and an empty one if it was never cloned
            is_wanted = not is_listed_by_git or os.path.lexists(f"{path}/.git")
            if is_wanted and self._keeps_folder(name):
                self._pending.append(name)
        elif is_secret(name):
            self._found.secrets.add(name)
        elif stat.S_ISLNK(status.st_mode):
            self._add_link(name, path)
        elif stat.S_ISREG(status.st_mode):
            is_executable = bool(status.st_mode & stat.S_IXUSR)
            self._found.files[name] = CodeFile(name, status.st_size, is_executable)

    def _add_link(self, name: str, path: str) -> None:
        target = inside_target(self._root, path)
        if target is None:
            self._found.outside_links.add(name)
        else:
            self._found.files[name] = CodeFile(name, link_target=target)

    def _keeps_folder(self, folder: str) -> bool:
        """Whether files in this folder may travel."""
        if folder not in self._keeps:
            parts = folder.split("/")
            for depth in range(1, len(parts) + 1):
                part = "/".join(parts[:depth])
                if part not in self._keeps:
                    self._keeps[part] = self._keeps["/".join(parts[: depth - 1])] and self._keeps_own_files(part)
        return self._keeps[folder]

    def _keeps_own_files(self, folder: str) -> bool:
        path = f"{self._root}/{folder}"
        if folder.rpartition("/")[2] in _CACHES or os.path.islink(path):
            return False  # behind a link, where git has tracked a folder, there may be anybody's files
        if any(os.path.lexists(f"{path}/{mark}") for mark in _ENVIRONMENT_MARKS) or _is_run(Path(path)):
            return False
        if is_secret(folder):
            self._found.secrets.add(f"{folder}/")
            return False
        return True

    def _names_in_repository(self, folder: str) -> list[str] | None:
        """List a repository inside the folder by git; None if it is not one."""
        path = self._found.root / folder
        if not self._found.uses_git and not os.path.lexists(path / ".git"):
            return None
        try:
            names = git_names(path)
        except GitTooSlow as error:
            raise InputError(f"{error}; make it smaller with a .gitignore") from error
        return None if names is None else [f"{folder}/{name}" for name in names]

    def _entries(self, folder: str) -> Iterator[str]:
        """Yield the names of all entries of a folder."""
        path = f"{self._root}/{folder}" if folder else self._root
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    yield f"{folder}/{entry.name}" if folder else entry.name
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unreadable(path, error) from error


def inside_target(root: str, link: str) -> str | None:
    """Return a relative target for a symbolic link that stays inside the folder; None if it leads out of it.

    The target goes up first and then only down, so that no other link on its way can turn it around.
    """
    real = os.path.realpath(link)
    if os.path.commonpath((root, real)) != root:
        return None
    folder, target = os.path.dirname(link), os.readlink(link)
    parts = target.split("/")
    num_up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    goes_up_first = not {"", ".", ".."}.intersection(parts[num_up:])
    depth = len(os.path.relpath(folder, root).split("/")) if folder != root else 0
    if not os.path.isabs(target) and goes_up_first and num_up <= depth:
        return target
    return os.path.relpath(real, folder)


def _is_run(folder: Path) -> bool:
    """Whether the folder is that of a run of zooid, which begins with a claim."""
    try:
        with open(folder / keys.CLAIM, "rb") as file:
            claim = msgspec.json.decode(file.read(_MAX_CLAIM_BYTES))
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(claim, dict) and claim.get("record") == RunClaim.__struct_config__.tag


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        f"{quoted(path)} in the job's folder cannot be read ({error.strerror}); make it readable, or name it in a "
        ".gitignore"
    )
