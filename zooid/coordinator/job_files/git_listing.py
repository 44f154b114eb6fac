"""The files of a folder as git sees them: tracked ones, and new ones that no .gitignore names."""

import os
import subprocess
from pathlib import Path

from zooid.core.environment import git_environment
from zooid.core.errors import InputError
from zooid.core.text import quoted

_TIME_LIMIT_S = 30.0
_NO_REPOSITORY = "not a git repository"


class GitTooSlow(Exception):
    """Git has not listed a folder within its time limit."""


def is_below_git(folder: Path) -> bool:
    """Whether the folder seems to be in a git repository."""
    return any(os.path.lexists(parent / ".git") for parent in (folder, *folder.parents))


def git_names(folder: Path) -> list[str] | None:
    """List the names, relative to the folder, of the files in it that git tracks or does not ignore.

    Tracked files that have been deleted are among them. A repository inside the folder is one name, sometimes with a
    trailing slash. None if the folder is in no repository after all. If git fails, that is an InputError, since
    without git the files that it ignores would travel as well.
    """
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard", "--", "."]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIME_LIMIT_S,
            check=False,
            env=git_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise GitTooSlow(f"git has not listed {folder} within {_TIME_LIMIT_S:g} s") from error
    except OSError as error:
        raise _failed(folder, f"git cannot be run ({error.strerror}), as if it were not installed") from error
    if done.returncode == 0:
        return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})
    said = quoted(" ".join(done.stderr.decode(errors="replace").split()))
    if _NO_REPOSITORY in said:
        return None
    raise _failed(folder, f"git says: {said}")


def _failed(folder: Path, reason: str) -> InputError:
    return InputError(
        f"the job's folder {folder} is in a git repository, but git cannot list its files: {reason}; repair "
        "that, or move the job out of the repository"
    )
