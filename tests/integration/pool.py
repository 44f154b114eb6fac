"""Members in processes that stay: each is forked from one that has torch, traces a model once, and serves many runs.

Everything that a member does is real, only its process has been somebody else before. One that fails is replaced.
"""

import gc
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.integration.ranks import FORKING
from zooid.core import keys
from zooid.core.environment import member_environment
from zooid.core.job import Job
from zooid.core.records import decode_record
from zooid.core.spec import WorkerSpec
from zooid.platforms import Exit, Launch
from zooid.store import open_store


@dataclass(eq=False)
class _Process:
    process: BaseProcess
    end: Connection
    log: Path

    def exit(self) -> Exit | None:
        """Of the run that it serves, once that has ended."""
        try:
            if self.end.poll():
                return Exit(self.end.recv())
        except (EOFError, ConnectionResetError):
            self.process.join()
        return None if self.process.exitcode is None else Exit(self.process.exitcode)


@dataclass(eq=False)
class PooledMember:
    """One member, as long as it runs."""

    process: _Process
    exit: Exit | None = None


class PoolPlatform:
    """A platform whose processes are kept for the next run."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._all: list[_Process] = []
        self._folder = tempfile.TemporaryDirectory(prefix="pool-")
        self.launched: list[str] = []
        """Names of members, in order; a test may forget those of others."""

    def launch(self, launch: Launch) -> PooledMember:
        assert launch.program == "worker", f"{launch.member} is no worker: give it a process of its own"
        self.launched.append(launch.member)
        process = self._idle.pop() if self._idle else self._start()
        process.end.send((launch.spec_url, member_environment(1)))
        return PooledMember(process)

    def poll(self, handle: PooledMember) -> Exit | None:
        if handle.exit is None:
            handle.exit = handle.process.exit()
            if handle.exit is not None and handle.exit.is_success:
                self._idle.append(handle.process)
            elif handle.exit is not None:
                handle.process.process.kill()
        return handle.exit

    def logs(self, handle: PooledMember) -> str:
        return handle.process.log.read_text(errors="replace")

    def terminate(self, handle: PooledMember) -> None:
        if self.poll(handle) is None:
            handle.process.process.kill()
            handle.exit = Exit(-signal.SIGKILL)
        if not handle.exit or not handle.exit.is_success:
            handle.process.process.join()

    def close(self) -> None:
        for process in self._all:
            process.process.kill()
            process.process.join()
            process.end.close()
        self._folder.cleanup()

    def _start(self) -> _Process:
        own_end, its_end = FORKING.Pipe()
        log = Path(self._folder.name) / f"{len(self._all)}.log"
        log.touch()
        process = _Process(FORKING.Process(target=_serve, args=(its_end, log)), own_end, log)
        process.process.start()
        its_end.close()
        self._all.append(process)
        return process


def _serve(end: Connection, log: Path) -> None:
    """One spec after the other, until nobody asks any more."""
    from zooid import layers
    from zooid.worker import __main__ as program
    from zooid.worker import preparation

    gc.freeze()  # what is imported need not be looked through again and again
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    trace_job = layers.trace_job
    traced: dict[tuple[str, bytes], layers.LayeredModel] = {}

    def trace_once(job: Job, example: layers.Batch, *, why_whole: str = "") -> layers.LayeredModel:
        """A job file is traced once, unless it changes; its path stands in the spec."""
        spec_url = sys.argv[1]
        store_url, key = keys.split_spec_url(spec_url)
        job_file = decode_record(bytes(open_store(store_url).get(key)), WorkerSpec, key).job_file
        known = job_file, Path(job_file).read_bytes()
        if known not in traced:
            traced[known] = trace_job(job, example, why_whole=why_whole)
        return traced[known]

    for module in (layers, preparation):
        vars(module)["trace_job"] = trace_once
    while True:
        try:
            spec_url, environment = end.recv()
        except EOFError:
            return
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["zooid.worker", spec_url]
        end.send(program.main())
