"""System calls for which Python 3.11 has no functions."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(namespaces: int) -> None:
    """Give this process new namespaces; of processes, only its next children are in the new one."""
    _check(_libc.unshare(namespaces), "unshare")


def enter(namespace: int) -> None:
    """Enter a namespace, which an open file of /proc/PID/ns names."""
    _check(_libc.setns(namespace, 0), "setns")


def mount(kind: str, source: str, target: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system; with a flag like MS_BIND it has no kind."""
    answer = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(answer, f"mount {kind} on {target}")


def bind(source: str, target: str, *, is_read_only: bool = False) -> None:
    """Show a folder, and what is mounted below it, at a second place."""
    mount("", source, target, MS_BIND | MS_REC)
    if is_read_only:
        make_read_only(target)


def make_read_only(target: str) -> None:
    """Forbid writing through one mount; the file system behind it stays writable elsewhere."""
    mount("", "", target, MS_REMOUNT | MS_BIND | MS_RDONLY)


def detach(target: str) -> None:
    """Take a mount away at once, and all below it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def control_process(option: int, value: int) -> None:
    """Call prctl for this process."""
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
