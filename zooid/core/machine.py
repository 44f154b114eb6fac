"""What this machine has for its members: cores and memory, as far as this process may use them."""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Cores that this process may run on; a container's quota counts, rounded up."""
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = _read("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    return allowed


def memory_bytes() -> int:
    """Memory of the machine, or of the container where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("memory.max")
    return min(physical, int(limit)) if limit.isdigit() else physical


def _read(name: str) -> str:
    """A limit of cgroup v2; empty where there is none."""
    try:
        return (_CGROUP / name).read_text().strip()
    except OSError:
        return ""
