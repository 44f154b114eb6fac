"""The local platform of most runs: members are forked, and what a test has traced already is not traced again."""

import io
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import cast

import pytest

from tests.integration.jobs import is_traced, traced_job
from tests.integration.ranks import FORKING
from tests.integration.recording import RecordingPlatform
from zooid.core.records import decode_one_of, encode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberEnd
from zooid.core.runs.spec import ProbeSpec, ProfilerSpec, RehearsalSpec, SweepSpec, WorkerSpec
from zooid.core.runs.ticket import Ticket
from zooid.platforms import Launch
from zooid.platforms.local import forks, zygote
from zooid.store import ObjectStore, open_store
from zooid.store.member_program import end_process, run_member
from zooid.worker.member import prepare_task


class ForkingPlatform(RecordingPlatform):
    """A preparer whose job this process has traced before is a thread of it; all other members are processes."""

    def create(self, launches: Sequence[Launch]) -> None:
        specs = [_spec_of(launch) for launch in launches]
        are_threads = [
            isinstance(spec, WorkerSpec) and spec.task == "prepare" and is_traced(Path(spec.job_file)) for spec in specs
        ]
        super().create([launch for launch, is_thread in zip(launches, are_threads, strict=True) if not is_thread])
        for launch, is_thread in zip(launches, are_threads, strict=True):
            if is_thread:
                self.launched.append(launch.member)
                ticket = launch.ticket
                self._started.setdefault(ticket.run, {})[ticket.title] = _PreparingThread(ticket)


def _spec_of(launch: Launch) -> object:
    store_url, key = keys.split_spec_url(launch.ticket.spec_url)
    kinds = (WorkerSpec, RehearsalSpec, ProfilerSpec, ProbeSpec, SweepSpec)
    return decode_one_of(bytes(open_store(store_url).get(key)), kinds, launch.ticket.spec_url)


class _PreparingThread:
    """As much of a process as the platform asks for."""

    def __init__(self, ticket: Ticket) -> None:
        self.returncode: int | None = None
        self._thread = threading.Thread(target=self._run, args=(ticket,), name="preparer", daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return self.returncode

    def _run(self, ticket: Ticket) -> None:
        with redirect_stdout(io.StringIO()):
            status = run_member([ticket.spec_url], {WorkerSpec: _prepare})
        store = open_store(keys.split_spec_url(ticket.spec_url)[0])
        end = MemberEnd(member=ticket.member, exit=Exit(status))
        store.put(keys.end(ticket.member, ticket.roster), encode_record(end))
        self.returncode = status


def _prepare(spec: WorkerSpec, store: ObjectStore) -> None:
    checked, layered = traced_job(Path(spec.job_file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_task, "check_job", lambda job: checked)
        patch.setattr(prepare_task, "_compared_layers", lambda checked, store: layered)
        prepare_task.prepare(spec, store)


class _ForkedZygote:
    """A zygote from the server that forks all processes of tests, with as much of a process as is asked for."""

    def __init__(self, end: socket.socket) -> None:
        self._process = FORKING.Process(target=_serve, args=(end,))
        self._process.start()
        self.returncode: int | None = None
        """None until somebody has waited for the end, as in subprocess."""

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        self._process.join()
        self.returncode = self._process.exitcode or 0
        return self.returncode


def _serve(end: socket.socket) -> None:
    sys.argv = ["zygote", str(end.detach()), str(forks.IDLE_S)]
    end_process(zygote.main())


def start_forked_zygote(end: socket.socket, environment: Mapping[str, str], words: int) -> forks.ZygoteProcess:
    """Start a zygote as `forks.start_zygote` does, but with all imports done, those of jobs in tests included."""
    return cast(forks.ZygoteProcess, _ForkedZygote(end))
