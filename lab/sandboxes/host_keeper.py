"""The process that owns a host of sandboxes: its network, the image of all roots, and a warden for each sandbox.

A program of its own, so that everything ends even when the calling process is killed. Reads one JSON object from its
arguments, prints one when sandboxes can be started, and ends when its input ends or the calling process does.
`sandbox.py` starts it.
"""

import json
import os
import select
import socket
import subprocess
import sys
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lab.machines import keeper
from lab.machines.keeper import open_switch, remove_cgroup, run_ip
from lab.sandboxes import kernel
from lab.sandboxes.controls import sandbox_hierarchies
from lab.sandboxes.warden import Ground, keep_sandbox

ADDRESS = "address"
"""Name of the socket, in the host's folder."""
_MOUNT_POINTS = ("image", "layer", "root")
_BACKLOG = 1024
_FIRST_SANDBOX = 10
_LAST_SANDBOX = 250
"""The last numbers of the addresses, which are used in turn."""


@dataclass(frozen=True)
class _Warden:
    pid: int
    number: int


class _Wardens:
    """The wardens that run, and the numbers of their sandboxes."""

    def __init__(self, ground: Ground, closed_in_wardens: tuple[int, ...]) -> None:
        self._ground = ground
        self._closed_in_wardens = closed_in_wardens
        self._by_pidfd: dict[int, _Warden] = {}
        self._last_number = _LAST_SANDBOX

    def pidfds(self) -> list[int]:
        return list(self._by_pidfd)

    def start(self, connection: socket.socket) -> None:
        """Fork a warden that serves this connection."""
        number = self._free_number()
        if number is None:
            most = _LAST_SANDBOX - _FIRST_SANDBOX + 1
            connection.sendall(json.dumps({"error": f"{most} sandboxes run already, and a host has no more"}).encode())
            return
        pid = os.fork()
        if pid == 0:
            self._be_warden(connection, number)
        self._by_pidfd[os.pidfd_open(pid)] = _Warden(pid, number)

    def collect(self, pidfd: int) -> None:
        """Forget a warden that has ended."""
        os.waitpid(self._by_pidfd.pop(pidfd).pid, 0)
        os.close(pidfd)

    def _free_number(self) -> int | None:
        taken = {warden.number for warden in self._by_pidfd.values()}
        following = [*range(self._last_number + 1, _LAST_SANDBOX + 1), *range(_FIRST_SANDBOX, self._last_number + 1)]
        number = next((number for number in following if number not in taken), None)
        if number is not None:
            self._last_number = number
        return number

    def _be_warden(self, connection: socket.socket, number: int) -> NoReturn:
        status = 1
        try:
            for each in (*self._closed_in_wardens, *self._by_pidfd):
                os.close(each)
            keep_sandbox(connection, self._ground, number)
            status = 0
        except BaseException:  # noqa: BLE001  # a forked child must never return into the keeper
            traceback.print_exc()
        finally:
            os._exit(status)


def main(request: dict[str, Any]) -> None:
    folder = Path(request["folder"])
    with ExitStack() as stack:
        stack.callback(_remove, folder)
        kernel.control_process(kernel.PR_SET_CHILD_SUBREAPER, 1)  # what wardens leave is to be reaped here
        caller = os.pidfd_open(request["caller_pid"])
        network = open_switch(request["caller_pid"])
        stack.callback(run_ip, "link", "delete", keeper.UPLINK)  # the caller's end goes with it
        image_mounts = _make_image(folder, request["root"])
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(str(folder / ADDRESS))
        listener.listen(_BACKLOG)
        life, own_end = os.pipe()
        ground = Ground(str(folder), image_mounts, sandbox_hierarchies(), network, request["mark"], os.getpid(), life)
        wardens = _Wardens(ground, (listener.fileno(), own_end, caller))
        print(json.dumps({"caller_ip": f"{network}.1"}), flush=True)
        try:
            _serve(listener, caller, wardens)
        finally:
            os.close(own_end)  # now they end
            for pidfd in wardens.pidfds():
                wardens.collect(pidfd)
            _sweep(ground)


def _make_image(folder: Path, variables: dict[str, str]) -> tuple[str, ...]:
    """Build what all roots have in common; returns the paths in it at which something else is mounted."""
    image = variables["ROOT"]
    for name in _MOUNT_POINTS:
        (folder / name).mkdir()
    script = str(Path(keeper.__file__).with_name("root.sh"))
    built = subprocess.run(["sh", script], env=variables, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise OSError(f"the image of the sandboxes could not be built: {built.stderr.strip()}")
    os.chmod(f"{image}/root", 0o711)  # the interpreter may lie below it, and not only root runs it
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [place.removeprefix(image) for place in places if place.startswith(f"{image}/")]
    return tuple(path for path in inside if not any(path.startswith(f"{other}/") for other in inside))


def _sweep(ground: Ground) -> None:
    """Remove what is left of sandboxes whose wardens were killed; the kernel has killed their processes."""
    left = [folder for hierarchy in ground.hierarchies for folder in hierarchy.own.glob(f"{ground.mark}-*")]
    for folder in left:
        with suppress(OSError):  # other hierarchies have no such file
            (folder / "freezer.state").write_text("THAWED")
    with suppress(ChildProcessError):
        while True:
            os.wait()
    for folder in left:
        remove_cgroup(folder)


def _remove(folder: Path) -> None:
    """Remove the host's folder, never by walking it: the image in it shows folders of this computer."""
    with suppress(OSError):  # it may not be mounted yet
        kernel.detach(str(folder / "image"))
    (folder / ADDRESS).unlink(missing_ok=True)
    for left in (*(folder / name for name in _MOUNT_POINTS), folder):
        with suppress(FileNotFoundError):
            left.rmdir()


def _serve(listener: socket.socket, caller: int, wardens: _Wardens) -> None:
    """Start wardens until the calling process says something, closes its end of the pipe, or dies."""
    while True:
        poll = select.poll()
        for each in (caller, sys.stdin.fileno(), listener.fileno(), *wardens.pidfds()):
            poll.register(each, select.POLLIN | select.POLLHUP)
        awake = {each for each, _ in poll.poll()}
        if awake & {caller, sys.stdin.fileno()}:
            return
        for pidfd in awake & set(wardens.pidfds()):
            wardens.collect(pidfd)
        if listener.fileno() in awake:
            with listener.accept()[0] as connection:
                wardens.start(connection)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
