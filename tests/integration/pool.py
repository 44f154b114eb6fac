"""Members in processes that stay: each imports torch and traces a model once, and then serves run after run.

Everything that a member does is real, only its process has been somebody else before. One that fails is replaced.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zooid.core import keys
from zooid.core.environment import member_environment
from zooid.core.job import Job
from zooid.core.records import decode_record
from zooid.core.spec import WorkerSpec
from zooid.platforms import Exit, Launch
from zooid.store import open_store


@dataclass(eq=False)
class _Process:
    process: "subprocess.Popen[str]"
    log: Path
    answers: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")


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

    def launch(self, launch: Launch) -> PooledMember:
        process = self._idle.pop() if self._idle else self._start()
        assert process.process.stdin is not None
        process.process.stdin.write(launch.spec_url + "\n")
        process.process.stdin.flush()
        return PooledMember(process)

    def poll(self, handle: PooledMember) -> Exit | None:
        if handle.exit is None:
            with suppress(queue.Empty):
                answer = handle.process.answers.get_nowait()
                handle.exit = Exit(int(answer) if answer else handle.process.process.wait())
                if handle.exit.is_success:
                    self._idle.append(handle.process)
                else:
                    handle.process.process.kill()
        return handle.exit

    def logs(self, handle: PooledMember) -> str:
        return handle.process.log.read_text(errors="replace")

    def terminate(self, handle: PooledMember) -> None:
        if self.poll(handle) is None:
            handle.process.process.kill()
            handle.exit = Exit(-signal.SIGKILL)
        if not handle.exit or not handle.exit.is_success:
            handle.process.process.wait()

    def close(self) -> None:
        for process in self._all:
            with process.process:  # closes its pipes
                process.process.kill()
        self._folder.cleanup()

    def _start(self) -> _Process:
        log = Path(self._folder.name) / f"{len(self._all)}.log"
        with log.open("wb") as output:
            started = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.pool"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=member_environment(1),
            )
        process = _Process(started, log)
        threading.Thread(target=process.listen, daemon=True).start()
        self._all.append(process)
        return process


def main() -> None:
    """One spec after the other, until nobody asks any more."""
    from zooid import layers
    from zooid.worker import __main__ as program
    from zooid.worker import member

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    traced: dict[str, layers.LayeredModel] = {}

    def trace_once(job: Job, example: layers.Batch) -> layers.LayeredModel:
        """A job file is traced once; its path stands in the spec."""
        spec_url = sys.argv[1]
        store_url, key = keys.split_spec_url(spec_url)
        job_file = decode_record(bytes(open_store(store_url).get(key)), WorkerSpec, key).job_file
        if job_file not in traced:
            traced[job_file] = layers.trace_job(job, example)
        return traced[job_file]

    vars(member)["trace_job"] = trace_once
    for line in sys.stdin:
        sys.argv[1:] = [line.strip()]
        answers.write(f"{program.main()}\n")


if __name__ == "__main__":
    main()
