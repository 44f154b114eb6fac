"""What a machine offers: cores and memory that may be used, GPUs, Python, and versions of packages.

The text of this file is also sent to machines on which nothing of zooid is installed, and executed there. So it is one
file, and needs only the standard library of Python 3.9 or later on Linux.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
from typing import Any

_NVIDIA_LIMIT_S = 20.0
_PACKAGES = ("torch", "obstore", "msgspec")


def facts() -> dict[str, Any]:
    """Say what this machine offers: cores and memory that may be used, GPUs, Python, and versions of packages."""
    gpus, gpu_error = list_gpus()
    return {
        "host": socket.gethostname(),
        "architecture": platform.machine(),
        "cores": _num_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": gpus,
        "gpu_error": gpu_error,
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _num_cores() -> int:
    quotas = [float(len(os.sched_getaffinity(0)))]
    for folder in _cgroup_folders("cpu"):
        quota, _, period = _text_of(f"{folder}/cpu.max").partition(" ")
        if not quota:
            quota, period = _text_of(f"{folder}/cpu.cfs_quota_us"), _text_of(f"{folder}/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return max(1, math.ceil(min(quotas)))


def _memory_bytes() -> int:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _cgroup_folders("memory"):
        texts = [_text_of(f"{folder}/{name}") for name in ("memory.max", "memory.limit_in_bytes")]
        limits += [int(text) for text in texts if text.isdigit()]
    return min(limits)


def _cgroup_folders(controller: str) -> list[str]:
    """List the folders that may limit this process, where systems usually mount them; others are not looked for."""
    folders = []
    for line in _text_of("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += ["/".join([root, *parts[:depth]]) for depth in range(len(parts) + 1)]
    return folders


def list_gpus() -> tuple[list[dict[str, Any]], str]:
    """List the GPUs with their memory, and the error of a driver that does not work."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return [], ""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_NVIDIA_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())[:500]
        return [], words or f"nvidia-smi ended with status {done.returncode}"
    rows = [line.rpartition(", ") for line in done.stdout.splitlines() if ", " in line]
    return [
        {"name": name.strip(), "memory_bytes": int(mebibytes) * 2**20 if mebibytes.strip().isdigit() else None}
        for name, _, mebibytes in rows
    ], ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text_of(path: str) -> str:
    """Read a file; a missing file is empty."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
