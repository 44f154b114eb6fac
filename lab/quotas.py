"""CPU quotas of running processes, so that a member becomes slower in the middle of a run."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from zooid.core.resources.machine import Cgroup, own_cgroup

PERIOD_US = 100_000
"""The kernel's default period: half a core runs for 50 ms, and then waits for 50 ms."""


def why_no_quotas() -> str:
    """Why this process cannot limit the processor time of others; empty if it can."""
    try:
        CpuQuota().close()
    except OSError as error:
        return f"a CPU quota needs a cgroup that this process may make: {error}"
    return ""


class CpuQuota:
    """A cgroup whose processes have a quota of processor time, which may change while they run.

    Closing it needs processes that have ended.
    """

    def __init__(self, period_us: int = PERIOD_US) -> None:
        self._period_us = period_us
        cgroup = own_cgroup("cpu")
        if cgroup is None:
            raise FileNotFoundError("no cgroups with a cpu controller are mounted")
        self._version = cgroup.version
        self._folder = _parent(cgroup) / f"lab-quota-{os.getpid()}-{secrets.token_hex(4)}"
        self._folder.mkdir()
        try:
            self._write_quota(None)
        except OSError:
            self._folder.rmdir()
            raise

    def take(self, pid: int) -> None:
        """Take in a process with all its threads."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def limit(self, num_cores: float) -> None:
        """Let all processes together use this many cores from now on."""
        self._write_quota(round(num_cores * self._period_us))

    def lift(self) -> None:
        """Let all processes use all cores again."""
        self._write_quota(None)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self._folder.rmdir()

    def _write_quota(self, quota_us: int | None) -> None:
        if self._version == 1:
            (self._folder / "cpu.cfs_period_us").write_text(str(self._period_us))
            (self._folder / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
        else:
            (self._folder / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {self._period_us}")


def _parent(cgroup: Cgroup) -> Path:
    """The folder of this process in version 1; in version 2, the nearest one that delegates the cpu controller."""
    if cgroup.version == 1:
        return cgroup.folder
    parent = cgroup.delegating("cpu")
    if parent is None:
        raise PermissionError(f"no folder of {cgroup.mount} delegates the controller cpu")
    return parent
