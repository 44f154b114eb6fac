"""Cores and memory of this machine, as far as this process may use them.

A container may limit a process to less than the machine has. The kernel enforces such limits with cgroups. In version
1, every controller (cpu, memory) has its own tree of folders; in version 2, all controllers share one tree. In both, a
limit applies to everything below the folder that sets it.
"""

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

SELF = Path("/proc/self")


@dataclass(frozen=True)
class Cgroup:
    """The cgroup of this process for one controller."""

    version: Literal[1, 2]
    mount: Path
    """Root of the tree, as far as this process can see it."""
    folder: Path

    def upwards(self) -> list[Path]:
        """List every folder whose limits apply to this process, starting with its own."""
        ancestors = [folder for folder in self.folder.parents if folder.is_relative_to(self.mount)]
        return [self.folder, *ancestors]

    def delegating(self, *controllers: str) -> Path | None:
        """In version 2, the nearest folder in which cgroups with these controllers can be made; None if there is none.

        A folder with processes in it, such as that of this process, is none: siblings must have the limits.
        """
        for folder in self.upwards():
            with suppress(OSError):
                if {*controllers} <= set((folder / "cgroup.subtree_control").read_text().split()):
                    return folder
        return None


def num_cores(process: Path = SELF) -> int:
    """Return the number of cores that this process may use, with a fractional quota rounded up."""
    return max(1, math.ceil(cpu_quota(process)))


def cpu_quota(process: Path = SELF) -> float:
    """Return the CPU time that this process may use, in cores: its smallest quota, or all its cores."""
    group = own_cgroup("cpu", process)
    quotas = [_quota(folder, group.version) for folder in group.upwards()] if group is not None else []
    return min([float(len(os.sched_getaffinity(0))), *(quota for quota in quotas if quota is not None)])


def memory_bytes(process: Path = SELF) -> int:
    """Return the memory of the machine, or the smallest limit on this process if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = own_cgroup("memory", process)
    if group is None:
        return physical
    file = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    limits = [_read(folder / file) for folder in group.upwards()]
    return min([physical, *(int(limit) for limit in limits if limit.isdigit())])


def own_cgroup(controller: str, process: Path = SELF) -> Cgroup | None:
    """Find the cgroup that limits `cpu` or `memory` of a process; None if no such tree is mounted.

    `process` is the process's folder under /proc. Its `cgroup` file gives the path within the trees, its `mountinfo`
    the mount points. Version 1 comes first, because a controller is active in one version only.
    """
    trees: tuple[tuple[Literal[1, 2], str, str], ...] = ((1, "cgroup", controller), (2, "cgroup2", ""))
    for version, kind, name in trees:
        path = _path_in_tree(process, name)
        if path is not None and (mounted := _mount(process, kind, name)) is not None:
            return Cgroup(version, mounted[0], _folder(*mounted, path))
    return None


def _path_in_tree(process: Path, controller: str) -> str | None:
    """Parse lines such as `4:cpu,cpuacct:/docker/1f`, or `0::/user.slice` in version 2."""
    for line in _read(process / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _mount(process: Path, kind: str, controller: str) -> tuple[Path, str] | None:
    """Return the mount point of the tree, and the folder of the tree that is mounted there.

    Parses lines such as `34 33 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu`.
    """
    for line in _read(process / "mountinfo").splitlines():
        mount_fields, _, filesystem_fields = line.partition(" - ")
        mounted_kind, _, options = filesystem_fields.split(" ", 2)
        if mounted_kind == kind and (not controller or controller in options.split(",")):
            root, mount_point = mount_fields.split(" ")[3:5]
            return Path(mount_point), root
    return None


def _folder(mount: Path, root: str, path: str) -> Path:
    """Return the folder of a cgroup; a container often sees only its own part of the tree."""
    if not PurePosixPath(path).is_relative_to(root) or ".." in PurePosixPath(path).parts:
        return mount
    return mount / PurePosixPath(path).relative_to(root)


def _quota(folder: Path, version: Literal[1, 2]) -> float | None:
    """Read the CPU quota of a folder, in cores; None if the folder sets none."""
    if version == 1:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    else:
        quota, _, period = _read(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _read(file: Path) -> str:
    """Read a file; a missing file is empty."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
