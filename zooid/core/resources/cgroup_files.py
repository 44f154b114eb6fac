"""The files of cgroups, of version 1 and 2: limits, what was used, and who runs inside.

Version 2 follows the kernel's documentation, and the laboratory's sandboxes have run with it. Nothing but the standard
library is needed, so a program that starts fast can use this.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

_PERIOD_US = 10_000
"""In every period a member may run for its quota, and then waits for the next period.

With the kernel's default of 100 ms, a quarter of a core would run for 25 ms and wait for 75: a layer of 5 ms would take
5 or 80 ms. With 10 ms it takes about 20 ms each time, as on a slower core.
"""
_MIN_QUOTA_US = 1_000
"""The shortest quota that the kernel accepts; smaller fractions of a core get a longer period."""
_OPTIONAL_FILES = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Files that exist only if the kernel counts swap, which a member must not use."""
KILL_FILES = ("memory.oom_control", "memory.events")
"""Files that count the processes which the kernel has killed for lack of memory, in version 1 and in version 2."""


def cpu_limits(vcpus: float, version: Literal[1, 2]) -> dict[str, str]:
    """What to write into which files of a cgroup, in this order, for so much processor time per time."""
    period_us = max(_PERIOD_US, round(_MIN_QUOTA_US / vcpus))
    quota_us = round(vcpus * period_us)
    if version == 1:
        return {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
    return {"cpu.max": f"{quota_us} {period_us}"}


def memory_limits(num_bytes: int, version: Literal[1, 2]) -> dict[str, str]:
    """What to write into which files of a cgroup, in this order, for so much memory and no swap."""
    if version == 1:
        return {file: str(num_bytes) for file in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")}
    return {"memory.max": str(num_bytes), "memory.swap.max": "0"}


def write_limits(folder: Path, limits: Mapping[str, str]) -> None:
    """Write limits into the files of a cgroup, as far as the kernel counts what they limit."""
    for file, limit in limits.items():
        if file not in _OPTIONAL_FILES or (folder / file).exists():
            (folder / file).write_text(limit)


def peak_bytes(folder: Path) -> int | None:
    """The most memory that the processes of a cgroup have had together; None if the kernel does not say."""
    for file in ("memory.max_usage_in_bytes", "memory.peak"):
        with suppress(OSError):
            return int((folder / file).read_text())
    return None


def num_killed(folder: Path) -> int:
    """Read how many processes of a cgroup the kernel has killed for lack of memory: the line `oom_kill 1`."""
    for file in KILL_FILES:
        with suppress(OSError):
            counts = dict(line.split() for line in (folder / file).read_text().splitlines())
            return int(counts.get("oom_kill", "0"))
    return 0


def kill_all(folder: Path) -> None:
    """Kill the processes of a cgroup."""
    with suppress(OSError):
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            if pid > 0:  # 0 is a process that cannot be seen from here
                os.kill(pid, signal.SIGKILL)
