"""Machines that share nothing but a network, made of the kernel's namespaces; needs root.

Each has its own processes, host name, file system, cgroups and address. Of this computer's files it sees only the
programs below /usr and the Python environment of the calling process, both read-only. The checkout is not among them:
`import zooid` fails on a machine until somebody brings the package there. A switch joins the machines with one another
and with the calling process. There is no way further out, and no name server.
"""

import itertools
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from lab.machines import keeper
from lab.namespaces import missing_privilege
from zooid.core.errors import InputError, ZooidError

PYTHON_FOLDER = "/opt/zooid-python"
"""Where the Python environment of the calling process lies on every machine."""
HOME = "/root"
COORDINATOR = "coordinator"
"""The name by which machines know the calling process's side."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WRITABLE_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", HOME)
_PROGRAMS = ("ip", "unshare", "nsenter", "setpriv", "pivot_root", "mount", "umount")
_MAX_MACHINES = 200
_BOOT_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 30.0
_DEATH_TIMEOUT_S = 10.0
_MEMBER_CGROUP = re.compile(r"zooid-\d+-[0-9a-f]{8}")
_ENTER = """#!/bin/sh
for file in {cgroup_files}; do echo $$ > "$file" || exit; done
exec env -i HOME={home} USER=root LOGNAME=root SHELL=/bin/sh LANG=C.UTF-8 PATH={path} \\
  nsenter --target {pid} --net --mount --uts --ipc --pid --cgroup -- \\
  setpriv --pdeathsig KILL -- sh -c 'cd && exec "$@"' sh "$@"
"""

_OWN_FOLDER = Path(__file__).resolve().parents[2]
"""The folder from which this package was imported."""

_counter = itertools.count()


class MachineFailed(ZooidError):
    """A machine of the laboratory could not be made, or a command on it failed."""


@dataclass(frozen=True)
class Process:
    """Something that runs on a machine."""

    pid: int
    """Its number on the machine."""
    outer_pid: int
    """Its number for the calling process."""
    program: str
    """Name of the file that it executes."""
    command: str


@dataclass(frozen=True)
class Address:
    """Where a machine is: in the network, and among the processes of this computer."""

    ip: str
    coordinator_ip: str
    """Address of the calling process's side."""
    init_pid: int
    cgroup_files: tuple[str, ...]
    """Files that take in a process, one for each hierarchy."""
    cable: tuple[str, ...]
    """Command that sets the state of the machine's link, which is its last argument."""


class Machine:
    """One machine, for as long as the block of `machines` lasts."""

    def __init__(self, name: str, place: Address, folder: Path) -> None:
        self.name = name
        self.address = place.ip
        self.coordinator_address = place.coordinator_ip
        """Address of the calling process's side, which machines also know by the name `coordinator`."""
        self.python = f"{PYTHON_FOLDER}/bin/python"
        """Path of the interpreter on the machine."""
        self.folder = folder
        """A temporary folder on the calling process's side, the same for all machines, which ends with them."""
        enter = folder / f"enter-{name}"
        enter.write_text(
            _ENTER.format(cgroup_files=shlex.join(place.cgroup_files), home=HOME, path=SEARCH_PATH, pid=place.init_pid)
        )
        enter.chmod(0o755)
        self.prefix = [str(enter)]
        """What to put before a command to run it on the machine, in the home folder and with a fresh environment.

        Killing the command kills the process on the machine, too, but not those that it has started."""
        self._init_pid = place.init_pid
        self._init = os.pidfd_open(place.init_pid)
        self._cable = place.cable
        self._daemons: set[str] = set()
        self._first_files = set(self._all_files())

    def run(
        self,
        command: Sequence[str],
        *,
        check: bool = True,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine and return what it said; a failure is an error unless `check` is false."""
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        answer = subprocess.run(
            [*self.prefix, "env", *variables, *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and answer.returncode != 0:
            said = (answer.stderr or answer.stdout).strip()
            raise MachineFailed(f"{' '.join(command)} on {self.name} ended with {answer.returncode}: {said}")
        return answer

    def outer_path(self, path: str) -> Path:
        """Return the path by which the calling process reaches a file on the machine, while the machine is on."""
        if not path.startswith("/"):
            raise InputError(f"{path!r} is given for a file on {self.name}; it must be an absolute path")
        return Path(f"/proc/{self._init_pid}/root{path}")

    def write(self, path: str, data: str | bytes, mode: int = 0o644) -> None:
        """Write a file on the machine; missing folders above it are made."""
        target = self.outer_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)
        target.chmod(mode)

    def read(self, path: str) -> str:
        """Return the text of a file on the machine."""
        return self.outer_path(path).read_text()

    def add_daemons(self, *programs: str) -> None:
        """Name programs that belong to the machine itself, so that `processes` does not list them."""
        self._daemons.update(programs)

    def processes(self) -> list[Process]:
        """List what runs on the machine besides its own daemons."""
        return [each for each in self.all_processes() if each.pid != 1 and each.program not in self._daemons]

    def all_processes(self) -> list[Process]:
        """List everything that runs on the machine, init included."""
        if not self.is_on:
            return []
        return processes_beside(self._init_pid)

    def files(self) -> list[str]:
        """List what was put into the home folder and the folders for temporary files, with all folders."""
        return sorted(set(self._all_files()) - self._first_files)

    def cgroups(self) -> list[str]:
        """List the cgroups on the machine that hold members to their sizes."""
        root = f"/proc/{self._init_pid}/root"
        found = [f"{current}/{name}" for current, names, _ in os.walk(f"{root}/sys/fs/cgroup") for name in names]
        return sorted(path.removeprefix(root) for path in found if _MEMBER_CGROUP.fullmatch(Path(path).name))

    def accept_files(self) -> None:
        """Let files that are there now belong to the machine itself, so that `files` does not list them."""
        self._first_files |= set(self._all_files())

    @property
    def is_on(self) -> bool:
        """False once the machine was powered off, or its block was left."""
        return self._init >= 0 and not self._has_died_within(0.0)

    def power_off(self) -> None:
        """End the machine as a power failure does: all at once, and no peer hears a word of it."""
        self.unplug()
        if self.is_on:
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
            if not self._has_died_within(_DEATH_TIMEOUT_S):
                raise MachineFailed(f"{self.name} still runs {_DEATH_TIMEOUT_S:g} s after it was killed")

    def unplug(self) -> None:
        """Pull the network cable: the machine runs on, reaches nobody, and no connection is closed by that."""
        self._set_link("down")

    def plug_in(self) -> None:
        """Put the network cable back."""
        self._set_link("up")

    def forget(self) -> None:
        """Let go of what this process holds of the machine; for `machines`, which ends it."""
        os.close(self._init)
        self._init = -1

    def _set_link(self, state: str) -> None:
        answer = subprocess.run([*self._cable, state], capture_output=True, text=True, check=False)
        if answer.returncode != 0 and self.is_on:  # the link of a machine that is off is gone
            raise MachineFailed(f"the link of {self.name} could not be set {state}: {answer.stderr.strip()}")

    def _has_died_within(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._init, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def _all_files(self) -> Iterator[str]:
        """Walk the folders that the machine may write to, without what is mounted there."""
        root = f"/proc/{self._init_pid}/root"
        for top in _WRITABLE_FOLDERS:
            device = os.stat(root + top).st_dev
            for current, folders, files in os.walk(root + top):
                folders[:] = [name for name in folders if os.lstat(f"{current}/{name}").st_dev == device]
                yield from (f"{current}/{name}".removeprefix(root) for name in (*folders, *files))


def processes_beside(init_pid: int) -> list[Process]:
    """List all processes in the process namespace of this one, which is named by its number outside."""
    namespace = os.readlink(f"/proc/{init_pid}/ns/pid")
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [process for pid in pids if (process := _process_in(namespace, pid)) is not None]


def _process_in(namespace: str, pid: int) -> Process | None:
    """Describe a process if it is in this process namespace; None if it is not, or has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        if os.readlink(folder / "ns/pid") != namespace:
            return None
        command = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        program = Path(os.readlink(folder / "exe")).name
        status = (folder / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # a zombie has no program either
        return None
    inner_pid = next(line.split()[-1] for line in status if line.startswith("NSpid:"))
    return Process(int(inner_pid), pid, program, command)


def missing_requirement(*programs: str) -> str | None:
    """Say what this process lacks to make machines with these programs on them; None where it lacks nothing."""
    for program in (*_PROGRAMS, *programs):
        if shutil.which(program, path=SEARCH_PATH) is None:
            return f"the program {program}, which `make laboratory` installs on Debian as root"
    lacking = missing_privilege()
    return None if lacking is None else f"{lacking}; run as root"


@contextmanager
def machines(
    num: int, *, hidden: Iterable[Path | str] = (), names: Sequence[str] | None = None
) -> Iterator[tuple[Machine, ...]]:
    """Make this many machines; they are gone when the block is left, however it is left, or this process is killed.

    `hidden` names folders that must be invisible on them. That matters only for folders below /usr or inside those of
    the Python environment, since nothing else is visible.
    """
    chosen = tuple(names) if names is not None else tuple(f"machine{number}" for number in range(num))
    if not 1 <= num <= _MAX_MACHINES or len(set(chosen)) != num:
        allowed = f"1 to {_MAX_MACHINES} are allowed, each with a name of its own"
        raise InputError(f"{num} machines with the names {', '.join(chosen)} are asked for; {allowed}")
    lacking = missing_requirement()
    if lacking is not None:
        raise MachineFailed(f"machines need {lacking}")
    folder = Path(tempfile.mkdtemp(prefix="zooid-machines-"))
    request = {
        "caller_pid": os.getpid(),
        "caller_name": COORDINATOR,
        "mark": f"zooid-{os.getpid()}-{next(_counter)}",
        "folder": str(folder),
        "names": chosen,
        "root": root_variables(folder / "root", hidden),
    }
    with kept_by(keeper.__name__, request, folder) as (keeper_pid, answer):
        cable = ("nsenter", "--target", str(keeper_pid), "--net", "ip", "link", "set")
        made = [
            Machine(
                name,
                Address(
                    ip=place["ip"],
                    coordinator_ip=answer["caller_ip"],
                    init_pid=place["init_pid"],
                    cgroup_files=tuple(place["cgroup_files"]),
                    cable=(*cable, place["port"]),
                ),
                folder,
            )
            for name, place in answer["machines"].items()
        ]
        try:
            yield tuple(made)
        finally:
            for machine in made:
                machine.forget()


def root_variables(root: Path, hidden: Iterable[Path | str] = ()) -> dict[str, str]:
    """Return the environment that `root.sh` needs to build a root file system in this folder."""
    covered = (*_checkouts(), *(Path(path).resolve() for path in hidden))
    return {
        "ROOT": str(root),
        "COVERED": "\n".join(map(str, covered)),
        "PATH": SEARCH_PATH,
        "PYTHON": sys.prefix,
        "PYTHON_AT": PYTHON_FOLDER,
        "PYTHON_BASE": sys.base_prefix,
    }


@contextmanager
def kept_by(module: str, request: dict[str, Any], folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run a keeper in namespaces of its own; yields its process id and what it answers.

    `folder` is removed with it.
    """
    namespaces = ("--net", "--mount", "--propagation", "private")
    python = (sys.executable, "-E", "-s", "-S")  # without packages it starts at once
    command = ["unshare", *namespaces, *python, "-m", module, json.dumps(request)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=_OWN_FOLDER,
            env={"PATH": SEARCH_PATH},  # who can look at the keeper's processes sees no variable of this one
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is for the calling process alone
        )
        try:
            assert process.stdout is not None
            has_answered = select.select([process.stdout], [], [], _BOOT_TIMEOUT_S)[0]
            answer = process.stdout.readline() if has_answered else ""
            if not answer:
                errors.seek(0)
                raise MachineFailed(f"{module} could not start: {errors.read().strip() or 'no answer'}")
            yield process.pid, json.loads(answer)
        finally:
            try:
                process.communicate("end", timeout=_END_TIMEOUT_S)
            finally:
                process.kill()  # where it did not end by itself, the machines go with it
                process.wait()
                shutil.rmtree(folder, ignore_errors=True)
        if process.returncode != 0:
            errors.seek(0)
            raise MachineFailed(f"something of what {module} made may be left: {errors.read().strip()}")


def _checkouts() -> list[Path]:
    """Folders from which this process may import zooid and the laboratory."""
    found = [_OWN_FOLDER]
    installed = json.loads(metadata.distribution("zooid").read_text("direct_url.json") or "{}")
    if installed.get("dir_info", {}).get("editable"):
        found.append(Path(unquote(urlparse(installed["url"]).path)))
    return found
