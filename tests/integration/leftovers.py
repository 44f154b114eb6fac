"""What a machine of the laboratory consists of in the kernel's books, and what of it is still there later."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lab.machines.machine import Machine, Process

_NS_GET_ID = 0x8008B70D
"""What asks the kernel for the id of a namespace, which no other namespace ever gets (Linux 6.18)."""


def traces(machine: Machine) -> list[str]:
    """Name everything that must be gone when a machine is: processes, namespaces, cgroups, device and files."""
    return traces_of(machine.all_processes(), machine.coordinator_address, machine.folder)


def traces_of(processes: Sequence[Process], caller_address: str, folder: Path) -> list[str]:
    """Name everything that must be gone when these processes are, of which the first one is process 1."""
    init = processes[0].outer_pid
    shared = set(_namespaces(os.getpid()))
    cgroups = Path(f"/proc/{init}/cgroup").read_text().splitlines()
    return [
        *(f"process {process.outer_pid}" for process in processes),
        *(f"namespace {name}" for name in _namespaces(init) if name not in shared),
        *(f"cgroup {line.split(':', 2)[2].strip('/')}" for line in cgroups),
        f"device {caller_address}",
        f"files {folder}",
    ]


def remaining(before: list[str]) -> list[str]:
    """Name what is still there of these traces."""
    namespaces = {name for entry in os.listdir("/proc") if entry.isdigit() for name in _namespaces(int(entry))}
    cgroups = {name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders}
    addresses = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/self/mountinfo").read_text()
    is_there: dict[str, Callable[[str], bool]] = {
        "process": lambda pid: Path(f"/proc/{pid}").exists(),
        "namespace": lambda name: name in namespaces,
        "cgroup": lambda path: Path(path).name in cgroups,
        "device": lambda address: f" {address}/" in addresses,
        "files": lambda folder: Path(folder).exists() or folder in mounts,
    }
    return [trace for trace in before if is_there[trace.split(" ", 1)[0]](trace.split(" ", 1)[1])]


def _namespaces(pid: int) -> list[str]:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return [f"{entry.name} {_id(entry)}" for entry in Path(f"/proc/{pid}/ns").iterdir()]
    return []


def _id(namespace: Path) -> int:
    """Return the id of a namespace, or else its number, which an older kernel gives to the next one when it is free."""
    answer = bytearray(8)
    with namespace.open("rb") as file:
        try:
            fcntl.ioctl(file, _NS_GET_ID, answer)
        except OSError:
            return namespace.stat().st_ino
    return int.from_bytes(answer, sys.byteorder)
