"""Members held to the size of an offer: each in a cgroup with a quota of processor time and a limit of memory.

Cgroups of version 1 are tried by the tests. Those of version 2 follow the kernel's documentation, and tests only look
at what would be written.
"""

import logging
import os
import secrets
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from zooid.core.errors import InputError
from zooid.core.resources.machine import SELF, Cgroup, own_cgroup
from zooid.core.units import format_bytes
from zooid.platforms.platform import Size

_PERIOD_US = 10_000
"""In every period a member may run for its share, and then stands still until the next begins. With the kernel's own
100 ms, a quarter of a core would compute at full speed for 25 ms and stand for 75: a layer of 5 ms would take 5 ms or
80, as it happens. With 10 ms it takes about 20 each time, as on the slower core that it is to be."""
_LEAST_QUOTA_US = 1_000
"""The kernel takes no shorter one; smaller shares get a longer period."""
_OPTIONAL_FILES = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Missing where the kernel does not count swap; where it does, a member must not grow into it."""
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
"""A shell enters the cgroups and then becomes the member, which so never runs outside."""
_REMOVAL_S = 5.0
"""Processes that were killed are gone long before that."""

_log = logging.getLogger(__name__)


class Confinement:
    """The cgroups of one member, from before its start to after its end."""

    def __init__(self, folders: Sequence[Path], memory_bytes: int) -> None:
        self.folders = list(folders)
        """Those that are still there."""
        self._memory_bytes = memory_bytes
        self._ran_out_of_memory = False

    @property
    def prefix(self) -> list[str]:
        """What to put before a command to run it inside."""
        return ["sh", "-c", _ENTER, "sh", *(str(folder / "cgroup.procs") for folder in self.folders), "--"]

    def exceeded_bytes(self) -> int | None:
        """The limit of memory, where the kernel has ended a process for it."""
        self._look_at_memory()
        return self._memory_bytes if self._ran_out_of_memory else None

    def remove_if_empty(self) -> bool:
        """Whether the cgroups are gone now."""
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
        """End what still runs inside, and remove the cgroups; where that is done already, it is fine."""
        deadline_s = time.monotonic() + _REMOVAL_S
        while not self.remove_if_empty():
            for folder in self.folders:
                _kill_all(folder)
            if time.monotonic() > deadline_s:
                _log.warning("%s cannot be removed, for a process in it does not end", self.folders[-1])
                return
            time.sleep(0.005)

    def _look_at_memory(self) -> None:
        """Version 1 counts in `memory.oom_control`, version 2 in `memory.events`, both in a line `oom_kill 1`."""
        for folder in self.folders:
            for file in ("memory.oom_control", "memory.events"):
                with suppress(OSError):
                    counts = dict(line.split() for line in (folder / file).read_text().splitlines())
                    self._ran_out_of_memory |= counts.get("oom_kill", "0") != "0"


def confine(size: Size, process: Path = SELF) -> Confinement:
    """Make the cgroups for one member, beside or below those of this process; refuses where that is not allowed."""
    name = f"zooid-{os.getpid()}-{secrets.token_hex(4)}"
    made: list[Path] = []
    try:
        for parent, limits in _limits_by_parent(size, process).items():
            folder = parent / name
            _sweep(parent)
            folder.mkdir()
            made.append(folder)
            for file, limit in limits.items():
                if file not in _OPTIONAL_FILES or (folder / file).exists():
                    (folder / file).write_text(limit)
    except OSError as error:
        for each in made:
            each.rmdir()
        raise _refusal(size, f"{folder} cannot be made: {error.strerror}") from error
    return Confinement(made, size.memory_bytes)


def _limits_by_parent(size: Size, process: Path) -> dict[Path, dict[str, str]]:
    """Under which folders to make cgroups, and what to write into their files, in this order."""
    groups = {controller: own_cgroup(controller, process) for controller in ("cpu", "memory")}
    period_us = max(_PERIOD_US, round(_LEAST_QUOTA_US / size.vcpus))
    quota_us = round(size.vcpus * period_us)
    cpu, memory = groups["cpu"], groups["memory"]
    if cpu is None or memory is None:
        raise _refusal(size, "no cgroups are mounted under /sys/fs/cgroup")
    if cpu.version == memory.version == 1:
        limits: dict[Path, dict[str, str]] = {}
        in_cpu = {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
        in_memory = {file: str(size.memory_bytes) for file in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")}
        limits.setdefault(cpu.folder, {}).update(in_cpu)
        limits.setdefault(memory.folder, {}).update(in_memory)  # the same folder where both are mounted as one
        return limits
    return {
        _parent_in_version_2(size, memory): {
            "cpu.max": f"{quota_us} {period_us}",
            "memory.max": str(size.memory_bytes),
            "memory.swap.max": "0",
        }
    }


def _parent_in_version_2(size: Size, own: Cgroup) -> Path:
    """The nearest folder that hands both controllers down. A folder with processes in it, such as this process's own,
    does not: there, limits are for folders that lie side by side."""
    for folder in own.upwards():
        with suppress(OSError):
            if {"cpu", "memory"} <= set((folder / "cgroup.subtree_control").read_text().split()):
                return folder
    raise _refusal(
        size, f"no folder of {own.mount} hands the controllers cpu and memory down in cgroup.subtree_control"
    )


def _refusal(size: Size, lacking: str) -> InputError:
    return InputError(
        f"a member cannot be held to {size.vcpus:g} vCPUs and {format_bytes(size.memory_bytes)}, which takes cgroups: "
        f"{lacking}; run as root where cgroups may be made, or give local:OFFER for an offer's prices without its size"
    )


def _sweep(parent: Path) -> None:
    """Remove the empty cgroups of processes that were killed before they could."""
    for folder in parent.glob("zooid-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with suppress(OSError):
                folder.rmdir()


def _kill_all(folder: Path) -> None:
    with suppress(OSError):
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            if pid > 0:  # 0 is a process that cannot be seen from here
                os.kill(pid, signal.SIGKILL)
