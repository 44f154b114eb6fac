"""What this machine has for its members: cores and memory, as far as this process may use them.

A container, or whoever started this process, may hold it to less than the machine has. The kernel does that with
cgroups, of two versions: in the first, every controller (cpu, memory) has a tree of folders of its own; in the second,
there is one tree for all. In both, a limit holds for everything below the folder in which it is written.
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
    """The folder in which the kernel limits this process, as one controller has it."""

    version: Literal[1, 2]
    mount: Path
    """Where its tree begins, as far as this process can see."""
    folder: Path

    def upwards(self) -> list[Path]:
        """Every folder whose limits hold for this process, its own first."""
        above = [folder for folder in self.folder.parents if folder.is_relative_to(self.mount)]
        return [self.folder, *above]


def num_cores(process: Path = SELF) -> int:
    """Cores that this process may run on; a quota counts, rounded up."""
    return max(1, math.ceil(cpu_share(process)))


def cpu_share(process: Path = SELF) -> float:
    """Processor time that this process may use, in cores: the smallest quota over it, exactly, or all its cores."""
    group = own_cgroup("cpu", process)
    quotas = [_quota(folder, group.version) for folder in group.upwards()] if group is not None else []
    return min([float(len(os.sched_getaffinity(0))), *(quota for quota in quotas if quota is not None)])


def memory_bytes(process: Path = SELF) -> int:
    """Memory of the machine, or the smallest limit over this process where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = own_cgroup("memory", process)
    if group is None:
        return physical
    file = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    limits = [_read(folder / file) for folder in group.upwards()]
    return min([physical, *(int(limit) for limit in limits if limit.isdigit())])


def own_cgroup(controller: str, process: Path = SELF) -> Cgroup | None:
    """Where `cpu` or `memory` of this process is limited; None where no such tree is mounted.

    `process` is the process's folder under /proc: its `cgroup` says where in the trees it is, its `mountinfo` where the
    trees are. Trees of version 1 come first: where a controller is in one, it is not in the other.
    """
    path = _path_in_tree(process, controller)
    if path is not None and (mounted := _mount(process, "cgroup", controller)) is not None:
        return Cgroup(1, mounted[0], _folder(*mounted, path))
    path = _path_in_tree(process, "")
    if path is not None and (mounted := _mount(process, "cgroup2", "")) is not None:
        return Cgroup(2, mounted[0], _folder(*mounted, path))
    return None


def _path_in_tree(process: Path, controller: str) -> str | None:
    """From lines such as `4:cpu,cpuacct:/docker/1f`, and `0::/user.slice` for version 2."""
    for line in _read(process / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _mount(process: Path, kind: str, controller: str) -> tuple[Path, str] | None:
    """Where the tree is mounted, and which of its folders is seen there.

    From lines such as `34 33 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu`.
    """
    for line in _read(process / "mountinfo").splitlines():
        where, _, what = line.partition(" - ")
        mounted_kind, _, options = what.split(" ", 2)
        if mounted_kind == kind and (not controller or controller in options.split(",")):
            root, point = where.split(" ")[3:5]
            return Path(point), root
    return None


def _folder(mount: Path, root: str, path: str) -> Path:
    """A container often sees only its own part of a tree, whatever path it is told."""
    if not PurePosixPath(path).is_relative_to(root) or ".." in PurePosixPath(path).parts:
        return mount
    return mount / PurePosixPath(path).relative_to(root)


def _quota(folder: Path, version: Literal[1, 2]) -> float | None:
    """In cores; None where this folder sets none."""
    if version == 1:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    else:
        quota, _, period = _read(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _read(file: Path) -> str:
    """Empty where there is no such file."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def peak_resident_bytes(process: Path = SELF) -> int:
    """The most that this process has had in memory, since its start or since `forget_peak`.

    What getrusage says of the peak is inherited from whoever started this process; this is not.
    """
    status = (process / "status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def anonymous_bytes(process: Path = SELF) -> int:
    """What this process has in memory that is in no file: the kernel cannot take it back."""
    status = (process / "status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def forget_peak(process: Path = SELF) -> None:
    """Let the peak begin anew; where the kernel does not allow it, it stays what it was."""
    with suppress(OSError):
        (process / "clear_refs").write_text("5")
