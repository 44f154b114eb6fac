"""Processes of a run, forked from one that has everything imported: coordinators and members that start in a moment.

The nursery itself never touches a store and has no threads, so that what it forks may do both. Whoever holds its
address can start processes, ask how they ended, and kill them: they are real processes with real exit statuses.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zooid.core.environment import member_environment
from zooid.core.plan import Plan
from zooid.core.records import decode_record
from zooid.platforms import Exit, Launch

_START_TIMEOUT_S = 60.0
_GRACE_S = 2.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Nursery:
    """The address of a nursery, and where what it starts prints to."""

    address: str

    @property
    def folder(self) -> Path:
        return Path(self.address).parent

    def ask(self, **request: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self.address)
            line.sendall(json.dumps(request).encode() + b"\n")
            answer = line.makefile().readline()
        return json.loads(answer)

    def start_coordinator(self, log: Path, **arguments: Any) -> int:
        """Start `zooid.train`, or `zooid.resume` where no job is given; its process id. Its events go to the log."""
        pid: int = self.ask(what="coordinator", log=str(log), arguments=arguments, environment=dict(os.environ))
        return pid

    def status_of(self, pid: int) -> int | None:
        """How a process ended; None while it runs."""
        status: int | None = self.ask(what="status", pid=pid)
        return status

    def members(self) -> dict[int, str]:
        """Names of the members that run at present, by process id."""
        return {int(pid): name for pid, name in self.ask(what="members").items()}


@dataclass(frozen=True)
class _Handle:
    pid: int
    log: Path


class NurseryPlatform:
    """A platform whose members a nursery starts."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery

    def launch(self, launch: Launch) -> _Handle:
        log = self._nursery.folder / f"{launch.member}-{time.monotonic_ns()}.log"
        log.touch()  # a member that is killed at once has printed nothing
        environment = member_environment(launch.num_threads)
        asked = {"program": launch.program, "member": launch.member, "spec_url": launch.spec_url}
        return _Handle(self._nursery.ask(what="member", log=str(log), environment=environment, **asked), log)

    def poll(self, handle: _Handle) -> Exit | None:
        status = self._nursery.status_of(handle.pid)
        return None if status is None else Exit(status)

    def logs(self, handle: _Handle) -> str:
        return handle.log.read_text(errors="replace")

    def terminate(self, handle: _Handle) -> None:
        deadline_s = time.monotonic() + _GRACE_S
        while self.poll(handle) is None:
            kind = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            with suppress(ProcessLookupError):
                os.killpg(handle.pid, kind)
            time.sleep(_POLL_S)


@contextmanager
def nursery() -> Iterator[Nursery]:
    """A nursery for the length of the context; everything that it has started ends with it."""
    with tempfile.TemporaryDirectory(prefix="zooid-nursery-") as folder:
        address = f"{folder}/address"
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, address], env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            _wait_until_up(process, address)
            yield Nursery(address)
        finally:
            process.terminate()
            process.wait()


def _wait_until_up(process: "subprocess.Popen[bytes]", address: str) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not Path(address).exists():
        assert process.poll() is None, "the nursery has ended"
        assert time.monotonic() < deadline_s, "the nursery does not start"
        time.sleep(_POLL_S)


class _Server:
    """What runs in the nursery's own process: one request after the other, by a single thread."""

    def __init__(self, address: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.bind(f"{address}-")
        self._line.listen(64)
        os.rename(f"{address}-", address)  # now it answers
        self._address = address
        self._statuses: dict[int, int | None] = {}
        self._members: dict[int, str] = {}

    def serve(self) -> None:
        while True:
            caller, _ = self._line.accept()
            with caller:
                request = json.loads(caller.makefile().readline())
                with suppress(BrokenPipeError):  # it was killed while it asked
                    caller.sendall(json.dumps(self._answer(request)).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> Any:
        match request["what"]:
            case "status":
                return self._status(request["pid"])
            case "members":
                return {pid: name for pid, name in self._members.items() if self._status(pid) is None}
            case "member":
                pid = self._fork(request, lambda: _run_member(request))
                self._members[pid] = request["member"]
                return pid
            case _:
                return self._fork(request, lambda: _coordinate(self._address, **request["arguments"]))

    def _status(self, pid: int) -> int | None:
        if self._statuses.get(pid) is None:
            with suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._statuses[pid] = os.waitstatus_to_exitcode(status)
        return self._statuses.get(pid)

    def end(self) -> None:
        for pid in [pid for pid in self._statuses if self._status(pid) is None]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _fork(self, request: dict[str, Any], work: Any) -> int:
        pid = os.fork()
        if pid:
            self._statuses[pid] = None
            return pid
        status = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._line.close()
            output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for number in (1, 2):
                os.dup2(output, number)
            os.environ.clear()
            os.environ.update(request["environment"])
            status = work()
        except BaseException:  # noqa: BLE001  # a forked child must never return into the server
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _run_member(request: dict[str, Any]) -> int:
    from zooid.profiler import __main__ as profiler
    from zooid.worker import __main__ as worker

    sys.argv = [request["program"], request["spec_url"]]
    return worker.main() if request["program"] == "worker" else profiler.main()


def _coordinate(address: str, *, plan: str | None = None, job_file: str | None = None, **arguments: Any) -> int:
    import zooid
    from zooid.core.checkpoint import CheckpointRule
    from zooid.core.errors import InputError, ZooidError
    from zooid.core.events import Event, encode_events

    def show(event: Event) -> None:
        os.write(1, encode_events([event]))

    given: dict[str, Any] = {"platform": NurseryPlatform(Nursery(address)), "on_event": show}
    given["checkpoints"] = CheckpointRule(**arguments.pop("checkpoints"))
    if plan is not None:
        given["plan"] = decode_record(plan.encode(), Plan, "the plan")
    try:
        if job_file is None:
            zooid.resume(arguments["store"], **given)
        else:
            zooid.train(job_file, store=arguments["store"], **given)
    except ZooidError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


def _main(address: str) -> None:
    import torch

    import zooid.coordinator
    import zooid.layers
    import zooid.profiler.__main__
    import zooid.worker.__main__
    import zooid.worker.member  # noqa: F401

    torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),))  # imports what every trace needs
    server = _Server(address)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        server.serve()
    finally:
        server.end()


if __name__ == "__main__":
    _main(sys.argv[1])
