"""Sandboxes: programs with a platform's limits and surroundings, of which many are started at any time; needs root.

A sandbox sees the programs below /usr, the Python environment of the calling process, and the folders it is given: no
checkout, no home folder, no process but its own, no variable that it is not given. It reaches servers of the calling
process, and sandboxes of the same host that accept connections; there is no way further out, and no name server.
"""

import itertools
import json
import logging
import os
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lab.machines.machine import (
    PYTHON_FOLDER,
    SEARCH_PATH,
    Process,
    kept_by,
    missing_requirement,
    processes_beside,
    root_variables,
)
from lab.sandboxes import host_keeper
from lab.sandboxes.confines import Confines
from lab.sandboxes.controls import Controls, missing_controllers
from lab.sandboxes.interior import list_files
from zooid.core.errors import InputError, ZooidError

PYTHON = f"{PYTHON_FOLDER}/bin/python"
"""Path of the interpreter in every sandbox."""
Output = Callable[[bytes], object] | IO[bytes] | IO[str] | None
"""Where a program's output goes: to a function, line by line, or to a file, or nowhere."""
_MESSAGE_BYTES = 2**16
_START_TIMEOUT_S = 60.0
_FREEZE_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 30.0
_POLL_S = 0.001

_counter = itertools.count()
_log = logging.getLogger(__name__)


class SandboxFailed(ZooidError):
    """A sandbox, or a host of sandboxes, could not be made."""


class Sandbox:
    """One program in its sandbox. All methods may be called from any thread, and after the end."""

    def __init__(self, name: str, place: dict[str, Any], program: int, connection: socket.socket) -> None:
        self.name = name
        """The sandbox's host name."""
        self.python = PYTHON
        """Path of the interpreter inside."""
        self.address: str = place["address"]
        """Its address, at which only those sandboxes answer that accept connections."""
        self.started_at_s: float = place["started_at_s"]
        """When the program was executed, as Unix time."""
        self._place = place
        self._controls = Controls(**place["controls"])
        self._program = program
        self._connection = connection
        self._lock = threading.Lock()
        self._report: dict[str, Any] | None = None
        self._is_to_end = False
        self._reader: threading.Thread | None = None

    @property
    def status(self) -> int | None:
        """The program's exit status, or minus the number of the signal that ended it; None while it runs.

        When it is there, nothing of the sandbox is left.
        """
        self._look(0.0)
        return None if self._report is None else int(self._report["status"])

    @property
    def ended_at_s(self) -> float | None:
        """When the sandbox ended, as Unix time; None while the program runs."""
        return None if self.status is None or self._report is None else float(self._report["ended_at_s"])

    @property
    def peak_bytes(self) -> int:
        """The most memory that was charged to the sandbox so far.

        That is what its processes had, what lay in /tmp, and files of which the kernel kept copies for it. The kernel
        drops copies before it kills, so the peak may be at the limit where nothing lacked memory.
        """
        return self._value("peak_bytes", self._controls.peak_bytes)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the sandbox because it needed more than the limit."""
        return bool(self._value("oom_kills", self._controls.num_oom_kills))

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end, and until all output was delivered; returns the status. TimeoutError if it takes longer."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._look(timeout_s)
        reader = self._reader
        if self._report is not None and reader is not None and reader is not threading.current_thread():
            reader.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        status = self.status
        if status is None:
            raise TimeoutError(f"the sandbox {self.name} still runs after {timeout_s:g} s")
        return status

    def signal(self, number: int) -> None:
        """Send a signal to the program, but not to others that it has started."""
        with self._lock:
            if self._report is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._program, number)

    def kill(self) -> None:
        """End everything inside at once, frozen or not; `wait` tells when it is over."""
        with self._lock:
            self._is_to_end = True
            if self._report is None:
                with suppress(OSError):  # it has ended by itself
                    self._connection.shutdown(socket.SHUT_WR)

    def freeze(self) -> None:
        """Stop everything inside, so that it gets no processor time; returns when it stands still."""
        self._stand_still(is_frozen=True)

    def thaw(self) -> None:
        """Let everything inside go on after `freeze`."""
        self._stand_still(is_frozen=False)

    def processes(self) -> list[Process]:
        """List what runs inside; the init is not listed."""
        if self.status is not None:
            return []
        with suppress(FileNotFoundError):  # it ends at this moment
            listed = processes_beside(self._place["init_pid"])
            return [process for process in listed if not self._is_init(process)]
        return []

    def files(self) -> list[str]:
        """List the files and folders that the program has made, by their paths inside; none are left after the end."""
        if self.status is not None:
            return []
        outside = f"/proc/{self._place['warden_pid']}/root"  # it has mounted what the sandbox writes to
        listed = list_files({f"{outside}{self._place['tmp']}": "/tmp", f"{outside}{self._place['upper']}": ""})
        image = f"{outside}{self._place['image']}"  # its folders are copied when something is made in them
        made = set(listed) - set(self._place["first_files"])
        return sorted(path for path in made if not os.path.isdir(f"{image}{path}"))

    def read_output(self, stream: IO[bytes], on_output: Callable[[bytes], object]) -> None:
        """Give the lines of the program's output to a function, in a thread; for the host, which starts it."""

        def read() -> None:
            with stream:
                for line in stream:
                    on_output(line)

        self._reader = threading.Thread(target=read, name=f"output of {self.name}", daemon=True)
        self._reader.start()

    def _is_init(self, process: Process) -> bool:
        return bool(self._place["has_init"]) and process.pid == 1

    def _value(self, name: str, read: Callable[[], int]) -> int:
        """Return a number of the last report, or read it while there is none."""
        while self.status is None:
            with suppress(OSError):  # the sandbox ends at this moment
                return read()
            self._look(_POLL_S)
        assert self._report is not None
        return int(self._report[name])

    def _look(self, timeout_s: float | None) -> None:
        """Wait for the last report."""
        if timeout_s != 0.0:
            with self._lock:
                if self._report is not None:
                    return
                waiting = self._connection.dup()  # another thread may close the connection meanwhile
            with waiting:
                poll = select.poll()
                poll.register(waiting, select.POLLIN | select.POLLHUP)
                poll.poll(None if timeout_s is None else 1000 * timeout_s)
        with self._lock, suppress(BlockingIOError):
            if self._report is None:
                self._close(self._connection.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT))

    def _close(self, message: bytes) -> None:
        lost = {"status": -signal.SIGKILL, "ended_at_s": time.time(), "peak_bytes": 0, "oom_kills": 0}
        self._report = {**lost, **(json.loads(message) if message else {"error": "its warden has died"})}
        if "error" in self._report:
            _log.warning("the sandbox %s was lost: %s", self.name, self._report["error"])
        self._connection.close()
        os.close(self._program)

    def _stand_still(self, *, is_frozen: bool) -> None:
        if self.status is not None:
            return
        deadline_s = time.monotonic() + _FREEZE_TIMEOUT_S
        while True:
            with self._lock, suppress(OSError):
                if self._is_to_end or self._report is not None or not self._controls.are_there:
                    return
                if self._controls.stand_still(is_frozen=is_frozen):
                    return
            if time.monotonic() > deadline_s:
                state = "frozen" if is_frozen else "thawed"
                raise SandboxFailed(f"the sandbox {self.name} is not {state} after {_FREEZE_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)


class SandboxHost:
    """A place for sandboxes, for as long as the block of `sandbox_host` lasts."""

    def __init__(self, caller_address: str, folder: Path) -> None:
        self.caller_address = caller_address
        """The address at which sandboxes reach servers of the calling process."""
        self.folder = folder
        """The host's temporary folder on the calling process's side."""
        self._lock = threading.Lock()
        self._running: list[Sandbox] = []
        self._is_open = True

    def start(
        self, command: Sequence[str], confines: Confines, *, stdin: bytes | None = None, on_output: Output = None
    ) -> Sandbox:
        """Start a program in a new sandbox; returns when it runs. Threads may do so side by side.

        Its output and its errors go to `on_output`, together: to a function that gets each line as bytes, called in a
        thread; to an open file; or nowhere.
        """
        if not command:
            raise InputError("the command of a sandbox is empty; give the program and its arguments")
        with self._lock:
            is_open = self._is_open
        if not is_open:
            raise SandboxFailed("the host of sandboxes has ended; start them inside its block")
        name = f"sandbox{next(_counter)}"
        plain = confines.as_json()
        plain["environment"] = {"PATH": SEARCH_PATH, **plain["environment"]}
        request = {"command": list(command), "confines": plain, "hostname": name}
        try:
            with ExitStack() as files, ExitStack() as kept_open:
                connection = kept_open.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                given = [_memory_file(json.dumps(request).encode()), _memory_file(stdin or b"")]
                stream: IO[bytes] | None = None
                if on_output is None:
                    given.append(os.open(os.devnull, os.O_WRONLY))
                elif callable(on_output):
                    read_end, write_end = os.pipe()
                    stream = kept_open.enter_context(os.fdopen(read_end, "rb"))
                    given.append(write_end)
                else:
                    given.append(os.dup(on_output.fileno()))
                for each in given:
                    files.callback(os.close, each)
                place, program = _ask(connection, str(self.folder / host_keeper.ADDRESS), given)
                kept_open.pop_all()  # from now on the sandbox closes them
        except OSError as error:
            raise SandboxFailed(f"{command[0]} could not be started in a sandbox: {error}") from error
        sandbox = Sandbox(name, {**place, "has_init": confines.has_init}, program, connection)
        if stream is not None and callable(on_output):
            sandbox.read_output(stream, on_output)
        with self._lock:
            self._running = [each for each in self._running if each.status is None]
            self._running.append(sandbox)
            is_open = self._is_open
        if not is_open:  # the host has ended meanwhile, and did not know of this one
            sandbox.kill()
        return sandbox

    def close(self) -> None:
        """End all sandboxes; for `sandbox_host`."""
        with self._lock:
            self._is_open = False
            running = list(self._running)
        for sandbox in running:
            sandbox.kill()
        for sandbox in running:
            sandbox.wait(_END_TIMEOUT_S)


def missing_for_sandboxes() -> str | None:
    """Say what this process lacks to make sandboxes; None where it lacks nothing."""
    lacking = missing_requirement("tc")
    if lacking is not None:
        return lacking
    return missing_controllers()


@contextmanager
def sandbox_host() -> Iterator[SandboxHost]:
    """Make a place for sandboxes.

    They are gone when the block is left, however it is left, or this process is killed.
    """
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise SandboxFailed(f"sandboxes need {lacking}")
    folder = Path(tempfile.mkdtemp(prefix="zooid-sandboxes-"))
    request = {
        "caller_pid": os.getpid(),
        "mark": f"zooid-sandbox-{os.getpid()}-{next(_counter)}",
        "folder": str(folder),
        "root": root_variables(folder / "image"),
    }
    with kept_by(host_keeper.__name__, request, folder) as (_, answer):
        host = SandboxHost(answer["caller_ip"], folder)
        try:
            yield host
        finally:
            host.close()


def _memory_file(content: bytes) -> int:
    """Return an open file without a name that holds these bytes, to be read from the start."""
    file = os.memfd_create("zooid-sandbox")
    with open(file, "wb", closefd=False) as writer:
        writer.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _ask(connection: socket.socket, address: str, files: list[int]) -> tuple[dict[str, Any], int]:
    """Ask the keeper for a sandbox; returns where it is, and the pidfd of its program."""
    connection.settimeout(_START_TIMEOUT_S)
    connection.connect(address)
    socket.send_fds(connection, [b"start"], files)
    message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
    connection.settimeout(None)
    if not message:
        raise OSError("the process that keeps the sandbox has died")
    place: dict[str, Any] = json.loads(message)
    if "error" in place:
        raise OSError(place["error"])
    os.set_inheritable(descriptors[0], False)
    return place, descriptors[0]
