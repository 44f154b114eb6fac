"""What happens inside a sandbox before its program runs: mounts, names and the loss of privileges.

`become` runs in a child of the warden that is process 1 of a new process namespace. It ends as the program itself, or
as an init which waits for the program.
"""

import os
import signal
import socket
import stat
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lab.machines.keeper import Hierarchy
from lab.sandboxes import kernel

READY = b"ready"
"""Comes with the program's pidfd when nothing is left to do but to execute it."""
_OUTSIDE = "/.outside"
"""Where the root of the calling process's side is for a moment."""
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
    "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}
"""Capabilities that a container's root has by default, without those that reach the devices and the network."""
_STATUS = struct.Struct("i")


@dataclass(frozen=True)
class Premises:
    """Folders outside, of which a sandbox is made. The calling process's side has them under these paths, too."""

    image: str
    """A root file system that all sandboxes of a host share."""
    image_mounts: tuple[str, ...]
    """Absolute paths below the image at which something else is mounted, such as /usr."""
    layer: str
    """The tmpfs of one sandbox, with all that it writes."""
    root: str
    """An empty folder on which to mount the sandbox's root."""

    @property
    def upper(self) -> str:
        """The folder of what the sandbox writes to its root."""
        return f"{self.layer}/upper"

    @property
    def tmp(self) -> str:
        """The folder that is the sandbox's /tmp."""
        return f"{self.layer}/tmp"

    def make_layer(self, num_bytes: int) -> None:
        """Mount the sandbox's tmpfs, in the mount namespace of this process."""
        kernel.mount("tmpfs", "layer", self.layer, kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=755,size={num_bytes}")
        for folder in (self.upper, f"{self.layer}/work", self.tmp):
            os.mkdir(folder)
        os.chmod(self.tmp, 0o1777)

    def files(self) -> list[str]:
        """List what was written in the sandbox, by the paths inside; for whoever has the layer's mount."""
        return list_files({self.tmp: "/tmp", self.upper: ""})

    def make_root(self) -> None:
        """Mount the image with the sandbox's layer over it, and make that the root."""
        layers = f"lowerdir={self.image},upperdir={self.upper},workdir={self.layer}/work"
        kernel.mount("overlay", "root", self.root, 0, layers)
        os.chdir(self.root)
        os.mkdir(_OUTSIDE[1:])
        subprocess.run(["pivot_root", ".", _OUTSIDE[1:]], check=True)  # a program, since libc has no function for it
        os.chdir("/")
        for path in self.image_mounts:
            kernel.bind(f"{_OUTSIDE}{self.image}{path}", path)
        kernel.bind(f"{_OUTSIDE}{self.tmp}", "/tmp")


@dataclass(frozen=True)
class Surroundings:
    """What a sandbox is made of, besides its confines."""

    premises: Premises
    network: int
    """An open file that names the network namespace."""
    hierarchies: list[Hierarchy]
    cgroups: list[Path]
    """A folder of each hierarchy."""
    hostname: str
    address: str


def list_files(folders: Mapping[str, str]) -> list[str]:
    """List all files and folders below these folders, for which the values stand in what is returned."""
    return [
        f"{shown}{current.removeprefix(top)}/{name}"
        for top, shown in folders.items()
        for current, inner_folders, files in os.walk(top)
        for name in (*inner_folders, *files)
    ]


def become(
    command: list[str], confines: dict[str, Any], around: Surroundings, sync: socket.socket, status: int
) -> None:
    """Turn this process into the program; it returns only by an error.

    `status` is an open pipe on which an init says how the program ended.
    """
    _die_with_parent()
    _enter_namespaces(around)
    around.premises.make_root()
    _mount_inside(confines, around)
    os.chdir(confines["working_folder"])
    os.setsid()
    if confines["has_init"]:
        child = os.fork()
        if child:
            sync.close()
            _reap(child, status)
        Path("/proc/self/oom_score_adj").write_text("500")  # rather the program than its init, which tells how it ended
    os.close(status)
    _drop_privileges(confines["user_id"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would go on to do so
        signal.signal(number, signal.SIG_DFL)
    own = os.pidfd_open(os.getpid())
    socket.send_fds(sync, [READY], [own])
    sync.recv(1)  # the warden looks round before it says something
    os.execvpe(command[0], command, confines["environment"])


def decode_status(message: bytes) -> int | None:
    """Return the wait status that an init wrote; None if it wrote none."""
    return _STATUS.unpack(message)[0] if len(message) == _STATUS.size else None


def _enter_namespaces(around: Surroundings) -> None:
    for folder in around.cgroups:
        (folder / "cgroup.procs").write_text("0")
    kernel.enter(around.network)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP)
    kernel.mount("", "", "/", kernel.MS_REC | kernel.MS_PRIVATE)
    socket.sethostname(around.hostname)


def _mount_inside(confines: dict[str, Any], around: Surroundings) -> None:
    _write("/etc/hostname", f"{around.hostname}\n")
    _write("/etc/hosts", f"127.0.0.1 localhost\n{around.address} {around.hostname}\n")
    for path, source in confines["folders"].items():
        os.makedirs(path, exist_ok=True)
        kernel.bind(f"{_OUTSIDE}{source}", path, is_read_only=True)
    kernel.mount("proc", "proc", "/proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.mount("sysfs", "sys", "/sys", kernel.MS_RDONLY)
    if confines["shows_cgroups"]:
        _mount_cgroups(around.hierarchies)
    _mount_devices(confines["shared_memory_bytes"])
    kernel.detach(_OUTSIDE)
    os.rmdir(_OUTSIDE)
    if confines["is_read_only"]:
        kernel.make_read_only("/")


def _mount_cgroups(hierarchies: list[Hierarchy]) -> None:
    """Mount what this process's cgroup namespace shows: the sandbox's own cgroups are the roots."""
    kernel.mount("tmpfs", "cgroup", "/sys/fs/cgroup", 0, "mode=755")
    for hierarchy in hierarchies:
        os.makedirs(hierarchy.mount, exist_ok=True)
        options = "" if hierarchy.type == "cgroup2" else hierarchy.options
        kernel.mount(hierarchy.type, "cgroup", hierarchy.mount, kernel.MS_RDONLY, options)
    kernel.make_read_only("/sys/fs/cgroup")


def _mount_devices(shared_memory_bytes: int) -> None:
    kernel.mount("tmpfs", "dev", "/dev", kernel.MS_NOSUID, "mode=755")
    old_mask = os.umask(0)
    for name, (major, minor) in _DEVICES.items():
        os.mknod(f"/dev/{name}", 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    os.umask(old_mask)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")
    if shared_memory_bytes:
        os.mkdir("/dev/shm")
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", "shm", "/dev/shm", flags, f"mode=1777,size={shared_memory_bytes}")
    kernel.make_read_only("/dev")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _drop_privileges(user_id: int) -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in set(range(last + 1)) - set(_CAPABILITIES.values()):
        kernel.control_process(kernel.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setgid(user_id)
    os.setuid(user_id)
    kernel.control_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    _die_with_parent()  # the kernel forgot that with the change of the user


def _die_with_parent() -> None:
    kernel.control_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _reap(program: int, status_file: int) -> NoReturn:
    """Be the init: wait for all that ends, and end with the program, whereupon the kernel ends the rest."""
    while True:
        pid, status = os.wait()
        if pid == program:
            os.write(status_file, _STATUS.pack(status))
            os._exit(0)
