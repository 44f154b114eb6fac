"""Processes of a run, forked from one that has everything imported: coordinators and members that start in a moment.

The nursery itself never touches a store and has no threads, so that what it forks may do both. Whoever holds its
address can start processes, ask how they ended, and kill them: they are real processes with real exit statuses.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zooid.core.environment import member_environment
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record
from zooid.core.runs.member_records import MemberHandle
from zooid.platforms import Exit, Launch

_START_TIMEOUT_S = 60.0
_GRACE_S = 2.0
_POLL_S = 0.01
_CLONE_NEWNET = 0x40000000
"""The kernel's flag for a network namespace."""
_STORE_DELAY_RATE = 0.3


@dataclass(frozen=True)
class Conditions:
    """What makes life hard for the processes of a run."""

    namespaces: dict[str, str] = field(default_factory=dict)
    """Network namespaces of members, by the members' names; everybody else stays where the nursery is."""
    store_error_rate: float = 0.0
    """Share of all requests to the store that fail, half of them after they were carried out."""
    store_delay_s: float = 0.0
    """Three of ten requests to the store take longer, by up to this much."""
    seed: int = 0


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

    def start_coordinator(self, log: Path, conditions: Conditions | None = None, **arguments: Any) -> int:
        """Start `zooid.train`, or `zooid.resume` where no job is given; its process id. Its events go to the log."""
        pid: int = self.ask(
            what="coordinator",
            log=str(log),
            arguments=arguments,
            environment=dict(os.environ),
            conditions=asdict(conditions or Conditions()),
        )
        return pid

    def status_of(self, pid: int) -> int | None:
        """How a process ended; None while it runs."""
        status: int | None = self.ask(what="status", pid=pid)
        return status

    def members(self) -> dict[int, str]:
        """Names of the members that run at present, by process id."""
        return {int(pid): name for pid, name in self.ask(what="members").items()}

    def running(self) -> list[int]:
        """Process ids of all that run at present, coordinators included."""
        pids: list[int] = self.ask(what="running")
        return pids

    def end_all(self) -> None:
        """Kill all that still run; returns when they are gone."""
        with suppress(ConnectionError):  # a nursery that was ended has ended everything with itself
            for pid in self.running():
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            while self.running():
                time.sleep(_POLL_S)


class NurseryPlatform:
    """A platform whose members a nursery starts, under the same conditions as the coordinator.

    Nobody attends them: the nursery itself tells how they end.
    """

    name = "nursery"
    look_s = 0.05

    def __init__(self, nursery: Nursery, conditions: Conditions) -> None:
        self._nursery = nursery
        self._conditions = asdict(conditions)

    def create(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            ticket = launch.ticket
            log = self._nursery.folder / f"{ticket.member}-{time.monotonic_ns()}.log"
            log.touch()  # a member that is killed at once has printed nothing
            self._nursery.ask(
                what="member",
                program=ticket.program,
                member=ticket.member,
                title=f"{ticket.run} {ticket.title}",
                spec_url=ticket.spec_url,
                log=str(log),
                environment=member_environment(ticket.num_threads),
                conditions=self._conditions,
            )

    def members(self, run: str) -> dict[str, Exit | None]:
        statuses: dict[str, int | None] = self._nursery.ask(what="statuses", run=run)
        return {title: None if status is None else Exit(status) for title, status in statuses.items()}

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        deadline_s = time.monotonic() + _GRACE_S
        pids: dict[str, int] = self._nursery.ask(what="pids", run=run)
        while any(title in titles and end is None for title, end in self.members(run).items()):
            kind = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            for title in titles:
                with suppress(ProcessLookupError, KeyError):
                    os.killpg(pids[title], kind)
            time.sleep(_POLL_S)
        return ()

    def release(self) -> None:
        pass

    def has_room(self, num_members: int, offer: str) -> bool:
        return True

    def place(self, launch: Launch) -> dict[str, str]:
        return {"nursery": self._nursery.address}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return handle.place.get("nursery") == self._nursery.address


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
        self._titles: dict[str, int] = {}
        """Process ids by run and title."""

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
            case "running":
                return [pid for pid in self._statuses if self._status(pid) is None]
            case "statuses":
                return {title: self._status(pid) for title, pid in self._of_run(request["run"])}
            case "pids":
                return {title: pid for title, pid in self._of_run(request["run"]) if self._status(pid) is None}
            case "member":
                pid = self._fork(request, lambda: _run_member(request))
                self._members[pid] = request["member"]
                self._titles[request["title"]] = pid
                return pid
            case _:
                conditions = Conditions(**request["conditions"])
                return self._fork(request, lambda: _coordinate(self._address, conditions, **request["arguments"]))

    def _of_run(self, run: str) -> list[tuple[str, int]]:
        return [(title.partition(" ")[2], pid) for title, pid in self._titles.items() if title.partition(" ")[0] == run]

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
            _live_under(Conditions(**request["conditions"]), request.get("member", ""))
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


def _live_under(conditions: Conditions, member: str) -> None:
    """Move this process to its network, and let its stores fail as often as they are to."""
    if (namespace := conditions.namespaces.get(member)) is not None:
        with Path("/var/run/netns", namespace).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    if conditions.store_error_rate or conditions.store_delay_s:
        from lab.faults import Faults, FaultyStore, Rates
        from zooid.store import objects

        rates = Rates(
            delay=_STORE_DELAY_RATE if conditions.store_delay_s else 0.0,
            delay_s=conditions.store_delay_s,
            error=conditions.store_error_rate / 2,
            lost_response=conditions.store_error_rate / 2,
        )
        honest = objects.ObstoreStore
        seed = zlib.crc32(f"{conditions.seed} {member}".encode())  # members do not fail together
        vars(objects)["ObstoreStore"] = lambda *arguments: FaultyStore(
            honest(*arguments), Faults.everywhere(rates), seed
        )


def _coordinate(
    address: str,
    conditions: Conditions,
    *,
    plan: str | None = None,
    job_file: str | None = None,
    **arguments: Any,
) -> int:
    import zooid
    from zooid.core.errors import InputError, ZooidError
    from zooid.core.runs.checkpoint import CheckpointRule
    from zooid.core.runs.events import Event, encode_events

    def show(event: Event) -> None:
        os.write(1, encode_events([event]))

    given: dict[str, Any] = {"platform": NurseryPlatform(Nursery(address), conditions), "on_event": show}
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
    import zooid.worker.member.train_task  # noqa: F401

    torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),))  # imports what every trace needs
    server = _Server(address)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        server.serve()
    finally:
        server.end()


if __name__ == "__main__":
    _main(sys.argv[1])
