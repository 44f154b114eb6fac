"""Members as processes of this machine, each in its own session, so that Ctrl-C reaches only the coordinator."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zooid.core.environment import member_environment
from zooid.platforms.local.adopted import AdoptedProcess, location_of, process_at
from zooid.platforms.local.cgroups import Confinement, confine
from zooid.platforms.local.forks import ForkedProcess, fork_member, ready_zygote
from zooid.platforms.platform import Exit, Launch

_GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class LocalHandle:
    """A process, the file with its output, and the cgroups that limit it."""

    process: "subprocess.Popen[bytes] | ForkedProcess | AdoptedProcess"
    log: Path
    confinement: Confinement | None = None


class LocalPlatform:
    """Starts members with this interpreter; `prefix` may run them inside a command such as `ip netns exec NAME`.

    Members are forked from a zygote, which has already imported torch. Members with a prefix are started as new
    processes. So are members with a size, since memory that they share with a zygote would not count towards their
    limit.
    """

    def __init__(self, prefix: Callable[[Launch], Sequence[str]] | None = None, *, forks: bool = True) -> None:
        """`forks` says whether members may be forked from zygotes."""
        self._prefix = prefix or (lambda launch: ())
        self._forks = forks
        self._logs = Path(tempfile.mkdtemp(prefix="zooid-logs-"))
        self._confinements: set[Confinement] = set()
        weakref.finalize(self, shutil.rmtree, self._logs, ignore_errors=True)
        weakref.finalize(self, _remove_all, self._confinements)  # also at the end of the interpreter

    def expect(self, num_threads: int, *, uses_gpus: bool = False) -> None:
        """Prepare a zygote for such members in the background, so that they can start at once."""
        if self._forks:
            ready_zygote(member_environment(num_threads, uses_gpus=uses_gpus))

    def launch(self, launch: Launch) -> LocalHandle:
        """Start a process; one with a size is limited from its first instruction, or rejected."""
        log = self._logs / f"{launch.member}.log"
        log.write_bytes(b"")
        environment = member_environment(launch.num_threads, uses_gpus=launch.uses_gpus)
        prefix = list(self._prefix(launch))
        if self._forks and launch.size is None and not prefix:
            return _mortal(LocalHandle(fork_member(launch, environment, log), log), launch.lifetime_s)
        command = [*prefix, sys.executable, "-m", f"zooid.{launch.program}", launch.spec_url]
        confinement = None
        if launch.size is not None:
            confinement = confine(launch.size)
            self._confinements.add(confinement)
            command = [*confinement.prefix, *command]  # outermost, since a network namespace may hide the cgroups
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return _mortal(LocalHandle(process, log, confinement), launch.lifetime_s)

    def has_room(self, num_members: int, offer: str) -> bool:
        return True

    def locate(self, handle: LocalHandle) -> dict[str, str]:
        pid = handle.process.pid
        return {} if pid is None else location_of(pid, handle.log)

    def find(self, location: Mapping[str, str]) -> LocalHandle | None:
        adopted = process_at(location)
        return None if adopted is None else LocalHandle(*adopted)

    def poll(self, handle: LocalHandle) -> Exit | None:
        if isinstance(handle.process, AdoptedProcess):
            return None if handle.process.is_alive else Exit(None)
        status = handle.process.poll()
        if status is None or handle.confinement is None:
            return None if status is None else Exit(status)
        if handle.confinement.remove_if_empty():
            self._confinements.discard(handle.confinement)
        return Exit(status, handle.confinement.exceeded_bytes() if status == -signal.SIGKILL else None)

    def logs(self, handle: LocalHandle) -> str:
        with suppress(OSError):  # the process that started an adopted member may have removed the log
            return handle.log.read_text(errors="replace")
        return ""

    def leave(self, handle: LocalHandle) -> None:
        """A member with a size keeps it; its cgroups are swept after its end, when the next ones are made."""
        if handle.confinement is not None:
            self._confinements.discard(handle.confinement)

    def terminate(self, handle: LocalHandle) -> None:
        """End the whole session of the member, with all processes that it has started."""
        session = handle.process.pid
        _signal_session(session, signal.SIGTERM)
        try:
            handle.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            _signal_session(session, signal.SIGKILL)
            handle.process.wait()
        _signal_session(session, signal.SIGKILL)  # its children may have outlived it
        if handle.confinement is not None:
            handle.confinement.remove()
            self._confinements.discard(handle.confinement)


def _mortal(handle: LocalHandle, lifetime_s: float | None) -> LocalHandle:
    """End the member after its lifetime, as a platform of functions does."""
    if lifetime_s is not None:

        def end() -> None:
            if handle.process.poll() is None:
                _signal_session(handle.process.pid, signal.SIGKILL)

        timer = threading.Timer(lifetime_s, end)
        timer.daemon = True
        timer.start()
    return handle


def _remove_all(confinements: set[Confinement]) -> None:
    while confinements:
        confinements.pop().remove()


def _signal_session(session: int | None, number: signal.Signals) -> None:
    if session is not None:
        with suppress(ProcessLookupError):
            os.killpg(session, number)
