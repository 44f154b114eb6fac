"""The process that keeps one sandbox: makes it, waits for its end, and removes all of it.

The host's keeper forks a warden for each connection of the calling process. The first message holds what to start; the
warden answers when the program runs, and once more when it has ended. Whatever else happens on the connection, and the
keeper's death, mean that the sandbox is to end at once.
"""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from lab.machines.keeper import SWITCH, Hierarchy, cgroups
from lab.sandboxes import kernel
from lab.sandboxes.controls import Controls
from lab.sandboxes.interior import READY, Premises, Surroundings, become, decode_status

_MESSAGE_BYTES = 2**16
_RETRY_S = 0.05
"""The calling process may freeze a sandbox at the moment of its end; so that is repeated until it is over."""
_KEEP_CONNECTED_ONLY = (
    "10,40 0 0 12,21 6 0 2054,21 0 6 2048,48 0 0 23,21 0 4 6,177 0 0 14,80 0 0 27,69 0 1 16,6 0 0 0,6 0 0 2"
)
"""A program in the kernel's classic BPF: ARP may pass, and TCP over IPv4 with the flag ACK. Nothing else may.

Only the first packet of a connection lacks that flag."""


@dataclass(frozen=True)
class Ground:
    """What the sandboxes of one host share."""

    folder: str
    image_mounts: tuple[str, ...]
    hierarchies: list[Hierarchy]
    network: str
    """The first three numbers of all addresses."""
    mark: str
    """The names of all cgroups begin with it."""
    keeper_pid: int
    keeper_life: int
    """An open pipe at whose other end is the keeper; it hangs up when the keeper wants to end, or has died."""

    def premises(self) -> Premises:
        return Premises(f"{self.folder}/image", self.image_mounts, f"{self.folder}/layer", f"{self.folder}/root")


def keep_sandbox(connection: socket.socket, ground: Ground, number: int) -> None:
    """Start what the first message asks for, and stay until it has ended and nothing of it is left."""
    request, files = _receive(connection)
    try:
        with ExitStack() as stack:
            sandbox = stack.enter_context(_Running.started(request, files, ground, number))
            socket.send_fds(connection, [json.dumps(sandbox.place).encode()], [sandbox.program.pidfd])
            report = sandbox.wait(connection, ground.keeper_life)
    except (OSError, subprocess.SubprocessError) as error:
        report = {"error": f"{type(error).__name__}: {error}"}
    with suppress(OSError):  # the calling process may be gone
        connection.sendall(json.dumps(report).encode())


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive open files: what is asked for, the program's input and its output."""
    _, (request_file, *files), _, _ = socket.recv_fds(connection, 1, 3)
    with open(request_file, "rb") as file:
        request: dict[str, Any] = json.loads(file.read())
    for each in files:
        os.set_inheritable(each, False)
    return request, files


@dataclass(frozen=True)
class _Program:
    """A program that has just been started."""

    init_pid: int
    """The process id of process 1, outside."""
    pidfd: int
    status_file: int
    """An open pipe on which the init, where there is one, says how the program ended."""
    started_at_s: float
    first_files: list[str]
    """Files that were made for the program, before it ran."""


@dataclass(frozen=True)
class _Running:
    """A sandbox whose program runs, or has just ended."""

    place: dict[str, Any]
    """What the calling process needs to know."""
    init: int
    """The pidfd of process 1, whether that is an init or the program."""
    program: "_Program"
    controls: Controls

    @classmethod
    @contextmanager
    def started(cls, request: dict[str, Any], files: list[int], ground: Ground, number: int) -> Iterator["_Running"]:
        confines = request["confines"]
        address = f"{ground.network}.{number}"
        with ExitStack() as stack:
            folders = stack.enter_context(cgroups(f"{ground.mark}-{number}-{os.getpid()}", ground.hierarchies))
            controls = Controls.of(ground.hierarchies, folders)
            controls.limit(confines["memory_bytes"], confines["vcpus"])
            network = stack.enter_context(_plugged_in(ground, number, address, confines["accepts_connections"]))
            kernel.unshare(kernel.CLONE_NEWNS)
            premises = ground.premises()
            premises.make_layer(confines["tmp_bytes"])
            around = Surroundings(premises, network, ground.hierarchies, folders, request["hostname"], address)
            program = _start(request["command"], confines, around, files)
            init = os.pidfd_open(program.init_pid)
            stack.callback(_end, init, controls)
            for each in (network, *files):
                os.close(each)  # else output would not end with the sandbox, nor the network
            place = {
                "address": address,
                "init_pid": program.init_pid,
                "warden_pid": os.getpid(),
                "started_at_s": program.started_at_s,
                "image": premises.image,
                "upper": premises.upper,
                "tmp": premises.tmp,
                "first_files": program.first_files,
                "controls": asdict(controls),
            }
            yield cls(place, init, program, controls)

    def wait(self, connection: socket.socket, keeper_life: int) -> dict[str, Any]:
        """Wait until the program has ended, or is to end; returns the last message to the calling process."""
        poll = select.poll()
        for each in (connection.fileno(), keeper_life, self.init):
            poll.register(each, select.POLLIN | select.POLLHUP)
        poll.poll()
        _end(self.init, self.controls)
        _, status = os.waitpid(self.program.init_pid, 0)
        ended_at_s = time.time()
        told = decode_status(os.read(self.program.status_file, 64))
        return {
            "status": os.waitstatus_to_exitcode(status if told is None else told),
            "ended_at_s": ended_at_s,
            "peak_bytes": self.controls.peak_bytes(),
            "oom_kills": self.controls.num_oom_kills(),
        }


@contextmanager
def _plugged_in(ground: Ground, number: int, address: str, accepts_connections: bool) -> Iterator[int]:
    """Make a network namespace that is joined to the switch; yields an open file that names it.

    The device's hardware address follows from its IP address, so what others remember of an earlier sandbox is right.
    """
    port = f"port{number}"
    outer = os.open("/proc/self/ns/net", os.O_RDONLY)
    kernel.unshare(kernel.CLONE_NEWNET)
    try:
        network = os.open("/proc/self/ns/net", os.O_RDONLY)
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        _run_batch(
            "ip",
            f"link add eth0 address {hardware} type veth peer name {port} netns {ground.keeper_pid}",
            "link set lo up",
            f"address add {address}/24 dev eth0",
            "link set eth0 up",
        )
    finally:
        kernel.enter(outer)
        os.close(outer)
    try:
        _run_batch("ip", f"link set {port} master {SWITCH} up")
        if not accepts_connections:
            drop = f"filter add dev {port} egress bpf da bytecode '{_KEEP_CONNECTED_ONLY}'"
            _run_batch("tc", f"qdisc add dev {port} clsact", drop)
        yield network
    finally:
        subprocess.run(["ip", "link", "delete", port], stderr=subprocess.DEVNULL, check=False)  # it may be gone


def _run_batch(program: str, *commands: str) -> None:
    answer = subprocess.run(
        [program, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise OSError(f"{program} {'; '.join(commands)} failed: {answer.stderr.strip()}")


def _start(command: list[str], confines: dict[str, Any], around: Surroundings, files: list[int]) -> _Program:
    sync, inner_sync = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status_file, inner_status_file = os.pipe()
    outer = os.open("/proc/self/ns/pid", os.O_RDONLY)
    kernel.unshare(kernel.CLONE_NEWPID)
    init_pid = os.fork()
    if init_pid == 0:
        try:
            standard_input, output = files
            for source, target in ((standard_input, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            sync.close()
            become(command, confines, around, inner_sync, inner_status_file)
        except BaseException as error:  # noqa: BLE001  # this process must never return into the warden
            with suppress(OSError):
                inner_sync.sendall(f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(127)
    kernel.enter(outer)  # what the warden starts later is no part of the sandbox
    os.close(outer)
    inner_sync.close()
    os.close(inner_status_file)
    try:
        with sync:
            pidfd = _receive_program(sync)
            first_files = around.premises.files()
            started_at_s = time.time()
            sync.sendall(b"!")
            if failure := sync.recv(_MESSAGE_BYTES):  # to execute the program closes the other end without a word
                raise OSError(failure.decode())
            return _Program(init_pid, pidfd, status_file, started_at_s, first_files)
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(init_pid, signal.SIGKILL)
        os.waitpid(init_pid, 0)
        raise


def _receive_program(sync: socket.socket) -> int:
    """Wait until all is ready for the program; returns the pidfd of the process that will be it."""
    said, descriptors, _, _ = socket.recv_fds(sync, _MESSAGE_BYTES, 1)
    if said != READY:
        raise OSError(said.decode() or "the first process died")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _end(init: int, controls: Controls) -> None:
    """Kill all that runs in a sandbox, and wait until that is done; it may have ended."""
    poll = select.poll()
    poll.register(init, select.POLLIN)
    while not poll.poll(0):
        controls.kill()
        poll.poll(1000 * _RETRY_S)
