"""What a machine of the laboratory consists of in the kernel's books, and what of it is still there later."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lab.machines.machine import Machine, Process

_NEVER = sys.maxsize


def traces(machine: Machine) -> list[str]:
    """Name everything that must be gone when a machine is: processes, namespaces, cgroups, device and files."""
    return traces_of(machine.all_processes(), machine.coordinator_address, machine.folder)


def traces_of(processes: Sequence[Process], caller_address: str, folder: Path) -> list[str]:
    """Name everything that must be gone when these processes are, of which the first one is process 1."""
    init = processes[0].outer_pid
    shared = set(_namespaces(os.getpid()))
    now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    cgroups = Path(f"/proc/{init}/cgroup").read_text().splitlines()
    return [
        *(f"process {process.outer_pid}" for process in processes),
        *(f"namespace {name} {now}" for name in _namespaces(init) if name not in shared),
        *(f"cgroup {line.split(':', 2)[2].strip('/')}" for line in cgroups),
        f"device {caller_address}",
        f"files {folder}",
    ]


def remaining(before: list[str]) -> list[str]:
    """Name what is still there of these traces.

    The kernel gives the number of a namespace to the next one as soon as it is free, so that only processes that began
    before the traces were taken tell whether a namespace is still there.
    """
    oldest: dict[str, int] = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        for name in _namespaces(pid):
            oldest[name] = min(_began(pid), oldest.get(name, _NEVER))
    cgroups = {name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders}
    addresses = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/self/mountinfo").read_text()
    is_there: dict[str, Callable[[str], bool]] = {
        "process": lambda pid: Path(f"/proc/{pid}").exists(),
        "namespace": lambda trace: oldest.get(trace.split()[0], _NEVER) <= int(trace.split()[1]),
        "cgroup": lambda path: Path(path).name in cgroups,
        "device": lambda address: f" {address}/" in addresses,
        "files": lambda folder: Path(folder).exists() or folder in mounts,
    }
    return [trace for trace in before if is_there[trace.split(" ", 1)[0]](trace.split(" ", 1)[1])]


def _namespaces(pid: int) -> list[str]:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return [os.readlink(entry) for entry in Path(f"/proc/{pid}/ns").iterdir()]
    return []


def _began(pid: int) -> int:
    """When a process began, in clock ticks since the machine did."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return _NEVER
