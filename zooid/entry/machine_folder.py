"""The folder of a run on one machine, and the processes of the run that live there.

The text of this file is also sent to machines on which nothing of zooid is installed, and executed there by `python -`.
So it is one file, needs only the standard library of Python 3.9 or later on Linux, and reads TMPDIR itself.

    ${TMPDIR:-/tmp}/zooid-UID/      one folder for each user, which nobody else may enter
        ~lock                       held while folders of runs are made, inspected or removed
        ~gone-…                     folders that are being removed
        RUN/members/TITLE           one file for each member, locked as long as its process lives
        RUN/words/TITLE             what that process has printed; its member's own output goes elsewhere
        RUN/…                       whatever the processes of the run keep there, such as code and logs

A lock tells whether a process lives, because the kernel releases it however the process ends, and because process
numbers are reused. The file also names the process and its sessions, so that all of them can be ended. A process number
counts only together with the start time of the process, on the same boot of the same machine.

"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LOCK, _GONE = "~lock", "~gone-"
"""Names that no run can have."""
_MEMBERS, _WORDS = "members", "words"
STARTER, KEEPER = "starter-", "keeper-"
"""Title prefixes of a process that starts the member named by the rest, and of one that only keeps the folder."""
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_POLL_S = 0.02
_KILL_LIMIT_S = 10.0
"""How long to wait for a killed process; only one that waits for a broken disk takes longer."""
_MAX_WORDS = 4096
"""Number of characters of a process's output that are read."""


class MachineFolderError(Exception):
    """A folder or a name cannot be used. It is no ZooidError, because this file imports nothing of zooid."""


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    started: int
    """Start time in kernel ticks since boot."""
    is_alive: bool
    """False for a zombie."""


class _Session(NamedTuple):
    number: int
    started: int
    """Start time of the process that leads the session, or did."""


class _Occupant(NamedTuple):
    """What the file of a title says about its process."""

    pid: int
    started: int
    sessions: list[_Session]


class Occupation:
    """The lock on a member's title, which this process holds until it ends or leaves the run."""

    def __init__(self, run: str, title: str, descriptor: int) -> None:
        self.run = run
        self.title = title
        self._descriptor = descriptor

    def note_session(self, leader: int) -> None:
        """Note a session that this process has started, by the process that leads it; it is ended with this process."""
        process = _process(leader)
        self._write({"session": leader, "started": process.started if process is not None else 0})

    def _begin(self) -> None:
        own = _process(os.getpid())
        session, group = os.getsid(0), os.getpgid(0)
        started = own.started if own is not None else 0
        os.ftruncate(self._descriptor, 0)
        about = {"machine": _machine(), "pid": os.getpid(), "started": started, "group": group, "session": session}
        self._write(about)

    def _write(self, line: dict[str, Any]) -> None:
        """Append a line at once; the file has O_APPEND."""
        os.write(self._descriptor, (json.dumps(line) + "\n").encode())

    def _release(self) -> None:
        """Release the lock, even if a process that is just being started has inherited the descriptor."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1  # its number may soon belong to another file


_own: dict[tuple[str, str], Occupation] = {}
"""Titles that this process occupies."""
_forks = {"are_watched": False}


def run_folder(run: str) -> str:
    """Return the path of a run's folder on this machine. It exists as long as a title of the run is occupied."""
    return os.path.join(_base(), _checked("run", run))


def occupy(run: str, title: str) -> Occupation | None:
    """Occupy a title until this process ends; None if a process of it lives already, as after a doubled start.

    The process should lead a session of its own; otherwise it is ended with its descendants alone. Forked processes do
    not share the occupation.
    """
    folder = os.path.join(run_folder(run), _MEMBERS)
    path = os.path.join(folder, _checked("title", title))
    with _locked(creates=True):
        _make_private(run_folder(run))
        _make_private(folder)
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = not _left_behind([path])
        except BlockingIOError:
            is_free = False
        occupation = Occupation(run, title, descriptor)
        if not is_free:
            occupation._release()
            return None
        occupation._begin()
    _own[run, title] = occupation
    if not _forks["are_watched"]:
        _forks["are_watched"] = True
        os.register_at_fork(after_in_child=_forget)
    return occupation


def _forget() -> None:
    """Close the inherited locks in a forked process, so that they end with the process that took them."""
    for occupation in _own.values():
        occupation._close()
    _own.clear()


def list_members(run: str) -> dict[str, bool]:
    """Map each title of a run on this machine to whether a process of it still lives."""
    _checked("run", run)
    with _locked() as exists:
        return _living(run) if exists else {}


def states(run: str) -> dict[str, str | None]:
    """Map each title to None while its member lives or is being started; later to the last words of its process."""
    living: set[str] = set()
    every: set[str] = set()
    for title, lives in list_members(run).items():
        if not title.startswith(KEEPER):
            every.add(title.removeprefix(STARTER))
            if lives:
                living.add(title.removeprefix(STARTER))
    return {title: None if title in living else last_words(run, title) for title in sorted(every)}


def keep(run: str) -> None:
    """Keep the folder of a run until this process leaves the run or ends."""
    if not any(own_run == run and title.startswith(KEEPER) for own_run, title in _own):
        occupy(run, f"{KEEPER}{secrets.token_hex(8)}")


def end_members(run: str, titles: Iterable[str], grace_s: float = 10.0) -> list[str]:
    """End the processes of these titles, all at the same time, and return when they are gone.

    Each process gets SIGINT. What lives after `grace_s` is killed, with its sessions and its descendants. Titles that
    are unknown or have ended are fine. Returns the titles that could not be ended, normally none.
    """
    if isinstance(titles, str):
        raise MachineFolderError(f"`titles` is {titles[:100]!r}; it must be a list of titles")
    wanted = {_checked("title", title) for title in titles}
    _checked("run", run)
    kill_at_s = time.monotonic() + grace_s
    interrupted = set[tuple[int, int]]()
    while True:
        with _locked() as exists:
            living = [title for title, lives in _living(run, wanted).items() if lives] if exists else []
            occupants = [_occupant(_title_path(run, title)) for title in living]
        now_s = time.monotonic()
        if not living or now_s > kill_at_s + _KILL_LIMIT_S:
            return living
        processes = _processes()
        for occupant in occupants:
            if occupant is not None and now_s >= kill_at_s:
                _signal(_all_of(occupant, processes), signal.SIGKILL)
            elif occupant is not None:
                leaders = {(process.pid, process.started): process for process in _leaders_of(occupant, processes)}
                _signal([leaders[key] for key in leaders.keys() - interrupted], signal.SIGINT)
                interrupted |= leaders.keys()
        time.sleep(_POLL_S)


def open_words(run: str, title: str) -> str:
    """Make the file for the output of the process of a title, and return its path; the run's folder must exist."""
    folder = os.path.join(run_folder(run), _WORDS)
    _make_private(folder)
    path = os.path.join(folder, _checked("title", title))
    os.close(os.open(path, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600))
    return path


def last_words(run: str, title: str) -> str:
    """Return the end of what the process of a title has printed; empty if that is nothing."""
    try:
        with open(os.path.join(run_folder(run), _WORDS, _checked("title", title)), errors="replace") as file:
            return file.read().strip()[-_MAX_WORDS:]
    except OSError:
        return ""


def leave(run: str) -> bool:
    """Give up all titles of this process in the run; the last process that leaves removes the run's folder."""
    _checked("run", run)
    with _locked() as exists:
        for key in [key for key in _own if key[0] == run]:
            occupation = _own.pop(key)
            path = _title_path(run, occupation.title)
            occupant = _occupant(path) if exists else None
            if occupant is not None and not _others_in(occupant):
                os.unlink(path)
            occupation._release()
    return sweep(run)


def sweep(run: str) -> bool:
    """Remove the folder of a run if no process of it lives on this machine; return whether no folder is left."""
    _checked("run", run)
    with _locked() as exists:
        is_gone = not exists or not os.path.lexists(run_folder(run)) or _throw_away(run)
    _empty_trash()
    return is_gone


def sweep_dead(max_age_s: float) -> list[str]:
    """Remove the folders of all runs that have no living process and were last used so many seconds ago.

    Returns the names of their runs. Nobody has left such a folder properly: its processes were killed.
    """
    removed = []
    with _locked() as exists:
        for run in sorted(os.listdir(_base())) if exists else []:
            is_run = _NAME.fullmatch(run) and os.path.isdir(run_folder(run))
            if is_run and time.time() - _last_used_s(run) >= max_age_s and _throw_away(run):
                removed.append(run)
    _empty_trash()
    return removed


# Folders and their locks


def _base() -> str:
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"zooid-{os.geteuid()}")


def _checked(what: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise MachineFolderError(
            f"the {what} {str(name)[:100]!r} is not a name; it must be 1 to 200 letters, digits, dots, hyphens and "
            "underscores"
        )
    return name


def _title_path(run: str, title: str) -> str:
    return os.path.join(run_folder(run), _MEMBERS, title)


def _make_private(folder: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    _check_private(folder)


def _check_private(folder: str) -> None:
    """Refuse a folder that another user has made or may write to; in /tmp, everybody may make one of any name."""
    status = os.lstat(folder)
    problem = ""
    if not stat.S_ISDIR(status.st_mode):
        problem = "is not a folder"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to the user {status.st_uid} instead of {os.geteuid()}"
    elif status.st_mode & 0o077:
        problem = f"has the mode {stat.S_IMODE(status.st_mode):o} instead of 700"
    if problem:
        raise MachineFolderError(f"{folder} {problem}, so that others could change it; remove it, or set TMPDIR")


@contextmanager
def _locked(creates: bool = False) -> Iterator[bool]:
    """Hold the lock of the user's folder, and yield True; if there is no folder and `creates` is False, yield False."""
    descriptor = _take_lock(creates)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _take_lock(creates: bool) -> int | None:
    """Take the lock. Another process may remove lock and folder meanwhile, and then it has to be done again."""
    while True:
        base = _base()
        try:
            if creates:
                _make_private(base)
            else:
                _check_private(base)
        except FileNotFoundError:
            if creates and os.path.isdir(os.path.dirname(base)):
                continue
            if creates:
                raise MachineFolderError(f"{os.path.dirname(base)} does not exist; set TMPDIR to a folder") from None
            return None
        path = os.path.join(base, _LOCK)
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def _throw_away(run: str) -> bool:
    """Under the lock, rename the folder of a run that has no living process; it is removed later, without the lock."""
    if any(_living(run).values()):
        return False
    os.rename(run_folder(run), os.path.join(_base(), f"{_GONE}{secrets.token_hex(8)}"))
    return True


def _empty_trash() -> None:
    """Remove what was thrown away, also by processes that were killed then, and the user's folder if it is empty."""
    try:
        names = os.listdir(_base())
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(_GONE):
            shutil.rmtree(os.path.join(_base(), name), ignore_errors=True)
    with _locked() as exists:
        if exists and os.listdir(_base()) == [_LOCK]:
            os.unlink(os.path.join(_base(), _LOCK))
            with suppress(OSError):  # a process that waited for the lock has made a new one
                os.rmdir(_base())


def _last_used_s(run: str) -> float:
    folder = run_folder(run)
    times = [0.0]
    for path in (folder, os.path.join(folder, _MEMBERS), *(_title_path(run, title) for title in _titles(run))):
        with suppress(FileNotFoundError):
            times.append(os.lstat(path).st_mtime)
    return max(times)


# Members and their processes


def _titles(run: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(os.path.join(run_folder(run), _MEMBERS)) if _NAME.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _living(run: str, wanted: set[str] | None = None) -> dict[str, bool]:
    """Under the lock, map titles to whether their locks are held, or processes of their sessions live."""
    titles = [title for title in _titles(run) if wanted is None or title in wanted]
    living = {title: _is_held(_title_path(run, title)) for title in titles}
    left_behind = _left_behind([_title_path(run, title) for title, is_held in living.items() if not is_held])
    return {title: is_held or _title_path(run, title) in left_behind for title, is_held in living.items()}


def _left_behind(paths: list[str]) -> set[str]:
    """Return the files of titles whose process was killed while other processes of its sessions still live."""
    occupants = [(path, _occupant(path)) for path in paths]
    dead = [(path, occupant) for path, occupant in occupants if occupant is not None and occupant.sessions]
    processes = _processes() if dead else []  # which takes milliseconds, while others wait for the lock
    return {path for path, occupant in dead if _in_sessions(occupant, processes)}


def _is_held(path: str) -> bool:
    """Whether a process has locked the file. Only under the lock, since `occupy` would take this for a member."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _occupant(path: str) -> _Occupant | None:
    """Read the file of a title; None if it is incomplete, or was written on another boot or machine."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        first = lines[0]
        if first["machine"] != _machine():
            return None
        sessions = [_Session(int(line["session"]), int(line["started"])) for line in lines[1:]]
        if first["session"] == first["pid"]:  # otherwise the session belongs to somebody else, such as a shell
            sessions.append(_Session(int(first["pid"]), int(first["started"])))
        return _Occupant(int(first["pid"]), int(first["started"]), sessions)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _leaders_of(occupant: _Occupant, processes: list[_Process]) -> list[_Process]:
    """The process that occupies a title; if it was killed, those that lead the sessions which it left behind."""
    leaders = {(session.number, session.started) for session in occupant.sessions}
    return _own_process(occupant, processes) or [
        process for process in processes if (process.pid, process.started) in leaders and process.is_alive
    ]


def _own_process(occupant: _Occupant, processes: list[_Process]) -> list[_Process]:
    return [
        process
        for process in processes
        if (process.pid, process.started) == (occupant.pid, occupant.started) and process.is_alive
    ]


def _all_of(occupant: _Occupant, processes: list[_Process]) -> list[_Process]:
    """Everything that belongs to an occupant: itself, its descendants, and the processes of its sessions."""
    found = {process.pid: process for process in _in_sessions(occupant, processes)}
    found.update({process.pid: process for process in _own_process(occupant, processes)})
    num_before = 0
    while len(found) > num_before:
        num_before = len(found)
        found.update({process.pid: process for process in processes if process.parent in found and process.is_alive})
    return list(found.values())


def _in_sessions(occupant: _Occupant, processes: list[_Process]) -> list[_Process]:
    """The living processes of an occupant's sessions, unless the kernel has given their numbers to others."""
    started = {process.pid: process.started for process in processes}
    sessions = {
        session.number: session.started
        for session in occupant.sessions
        if started.get(session.number, session.started) == session.started
    }
    return [
        process
        for process in processes
        if process.is_alive and process.session in sessions and process.started >= sessions[process.session]
    ]


def _others_in(occupant: _Occupant) -> list[_Process]:
    """The living processes of the sessions that an occupant has noted; its own session is not among them."""
    noted = [session for session in occupant.sessions if session.number != occupant.pid]
    return _in_sessions(occupant._replace(sessions=noted), _processes()) if noted else []


def _signal(processes: list[_Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _processes() -> list[_Process]:
    """All processes of this machine but the calling one."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    return [process for process in map(_process, numbers) if process is not None]


def _process(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before it may contain anything
        return _Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] not in "ZX")
    except (OSError, LookupError, ValueError):
        return None


def _machine() -> str:
    """Return the boot id and process namespace, within which pids are unique. Parts that a sandbox hides are empty."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{_read('/proc/sys/kernel/random/boot_id')} {namespace}"


def _read(path: str) -> str:
    """Read a file; a missing file is empty."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
