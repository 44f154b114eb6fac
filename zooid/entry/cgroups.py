"""Members limited to the size of an offer, each in a cgroup with limits on processor time and memory.

Tests run cgroups of version 1. Those of version 2 follow the kernel's documentation; tests only check what would be
written.
"""

import logging
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from zooid.core.errors import InputError
from zooid.core.resources.cgroup_files import (
    KILL_FILES,
    cpu_limits,
    kill_all,
    memory_limits,
    num_killed,
    peak_bytes,
    write_limits,
)
from zooid.core.resources.machine import SELF, memory_bytes, own_cgroup
from zooid.core.resources.size import Size
from zooid.core.units import format_bytes

_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
"""A shell enters the cgroups and then becomes the member, which therefore never runs outside them."""
_REMOVAL_S = 5.0
"""Seconds to wait for killed processes, which are usually gone much sooner."""

_log = logging.getLogger(__name__)


class Confinement:
    """The cgroups of one member, from before its start to after its end."""

    def __init__(self, folders: Sequence[Path], memory_bytes: int) -> None:
        self.folders = list(folders)
        """The folders of the cgroups that still exist."""
        self._memory_bytes = memory_bytes
        self._ran_out_of_memory = False

    @property
    def prefix(self) -> list[str]:
        """The prefix of a command that runs it inside the cgroups."""
        return ["sh", "-c", _ENTER, "sh", *(str(folder / "cgroup.procs") for folder in self.folders), "--"]

    def exceeded_bytes(self) -> int | None:
        """The memory limit, if the kernel has killed a process for exceeding it; else None."""
        self._look_at_memory()
        return self._memory_bytes if self._ran_out_of_memory else None

    def peak_bytes(self) -> int | None:
        """The most memory that the processes inside have had together; None if the kernel does not say."""
        return next((peak for folder in self.folders if (peak := peak_bytes(folder)) is not None), None)

    def remove_if_empty(self) -> bool:
        """Remove the cgroups; False if a process still runs inside."""
        self._look_at_memory()
        while self.folders:
            try:
                self.folders[-1].rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return False
            self.folders.pop()
        return True

    def remove(self) -> None:
        """Kill the processes inside, and remove the cgroups; they may be gone already."""
        deadline_s = time.monotonic() + _REMOVAL_S
        while not self.remove_if_empty():
            for folder in self.folders:
                kill_all(folder)
            if time.monotonic() > deadline_s:
                _log.warning("%s cannot be removed, since a process in it does not end", self.folders[-1])
                return
            time.sleep(0.005)

    def _look_at_memory(self) -> None:
        self._ran_out_of_memory |= any(map(num_killed, self.folders))


class SharedLimit:
    """The memory limit of this process, which also holds for a member without limits of its own."""

    def __init__(self, given_bytes: int | None = None, process: Path = SELF) -> None:
        """To be called before the member starts. `given_bytes` is the memory of a machine for the member alone."""
        self._given_bytes = given_bytes
        self._process = process
        self._num_before = self._num_now()

    def exceeded_bytes(self) -> int | None:
        """The limit, if the kernel has killed a process for exceeding it; else None."""
        if self._num_now() <= self._num_before:
            return None
        return memory_bytes(self._process) if self._given_bytes is None else self._given_bytes

    def _num_now(self) -> int:
        """Count processes that the kernel has killed: in this cgroup, or on the machine if that is one's own.

        Functions see no cgroups. Containers that see theirs may share the machine with others.
        """
        group = own_cgroup("memory", self._process)
        if group is not None and _tells_kills(group.folder):
            return num_killed(group.folder)
        return 0 if self._given_bytes is None else _num_killed_on(self._process.parent)


def confine(size: Size, process: Path = SELF) -> Confinement:
    """Make the cgroups for one member, beside or below those of this process; InputError if that is not allowed."""
    name = f"zooid-{os.getpid()}-{secrets.token_hex(4)}"
    folders: list[Path] = []
    try:
        for parent, limits in _limits_by_parent(size, process).items():
            folder = parent / name
            _sweep(parent)
            folder.mkdir()
            folders.append(folder)
            write_limits(folder, limits)
    except OSError as error:
        for made in folders:
            made.rmdir()
        raise _rejection(size, f"{folder} cannot be made: {error.strerror}") from error
    return Confinement(folders, size.memory_bytes)


def _limits_by_parent(size: Size, process: Path) -> dict[Path, dict[str, str]]:
    """The parent folders of the cgroups, and what to write into which files, in this order."""
    cpu, memory = own_cgroup("cpu", process), own_cgroup("memory", process)
    if cpu is None or memory is None:
        raise _rejection(size, "no cgroups are mounted under /sys/fs/cgroup")
    version: Literal[1, 2] = 1 if cpu.version == memory.version == 1 else 2
    of_cpu, of_memory = cpu_limits(size.vcpus, version), memory_limits(size.memory_bytes, version)
    if version == 1:
        if cpu.folder == memory.folder:  # both are mounted together
            return {cpu.folder: of_cpu | of_memory}
        return {cpu.folder: of_cpu, memory.folder: of_memory}
    parent = memory.delegating("cpu", "memory")
    if parent is None:
        raise _rejection(
            size, f"no folder of {memory.mount} delegates the controllers cpu and memory in cgroup.subtree_control"
        )
    return {parent: of_cpu | of_memory}


def _rejection(size: Size, lacking: str) -> InputError:
    return InputError(
        f"a member cannot be limited to {size.vcpus:g} vCPUs and {format_bytes(size.memory_bytes)}, which needs "
        f"cgroups: {lacking}; run as root where cgroups may be made, or give local:OFFER for an offer's prices without "
        "its size"
    )


def _sweep(parent: Path) -> None:
    """Remove the empty cgroups of coordinators that were killed."""
    for folder in parent.glob("zooid-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with suppress(OSError):
                folder.rmdir()


def _tells_kills(folder: Path) -> bool:
    """Whether a cgroup counts killed processes. The root of version 2 does not."""
    return any((folder / file).exists() for file in KILL_FILES)


def _num_killed_on(proc: Path) -> int:
    """Read how many processes the kernel of this machine has killed for lack of memory."""
    with suppress(OSError):
        counts = dict(line.split() for line in (proc / "vmstat").read_text().splitlines())
        return int(counts.get("oom_kill", "0"))
    return 0
