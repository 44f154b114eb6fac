"""Members as processes of this machine, each in a session of its own, so that Ctrl-C reaches only the coordinator."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zooid.core.environment import member_environment
from zooid.platforms.protocol import Exit, Launch

_GRACE_S = 2.0
"""Between asking a process to end and ending it."""


@dataclass(frozen=True)
class LocalHandle:
    """One started process and the file it prints to."""

    process: "subprocess.Popen[bytes]"
    log: Path


class LocalPlatform:
    """Starts members with this interpreter. `prefix` may put a command before theirs, such as `ip netns exec NAME`."""

    def __init__(self, prefix: Callable[[Launch], Sequence[str]] | None = None) -> None:
        self._prefix = prefix or (lambda launch: ())
        self._logs = Path(tempfile.mkdtemp(prefix="zooid-logs-"))
        weakref.finalize(self, shutil.rmtree, self._logs, ignore_errors=True)

    def launch(self, launch: Launch) -> LocalHandle:
        log = self._logs / f"{launch.member}.log"
        command = [*self._prefix(launch), sys.executable, "-m", f"zooid.{launch.program}", launch.spec_url]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=member_environment(launch.num_threads),
                start_new_session=True,
            )
        return LocalHandle(process, log)

    def poll(self, handle: LocalHandle) -> Exit | None:
        status = handle.process.poll()
        return None if status is None else Exit(status)

    def logs(self, handle: LocalHandle) -> str:
        return handle.log.read_text(errors="replace")

    def terminate(self, handle: LocalHandle) -> None:
        """The member's whole session ends, whatever it may have started itself."""
        _signal_session(handle, signal.SIGTERM)
        try:
            handle.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            _signal_session(handle, signal.SIGKILL)
            handle.process.wait()
        _signal_session(handle, signal.SIGKILL)  # what it had started may have outlived it


def _signal_session(handle: LocalHandle, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(handle.process.pid, number)
