"""Members as processes of this machine, each in a session of its own, so that Ctrl-C reaches only the coordinator."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zooid.core.environment import member_environment
from zooid.platforms.local.adopted import AdoptedProcess, place_of, process_at
from zooid.platforms.local.cgroups import Confinement, confine
from zooid.platforms.local.forks import ForkedProcess, fork_member, ready_zygote
from zooid.platforms.platform import Exit, Launch

_GRACE_S = 2.0
"""Between asking a process to end and ending it."""


@dataclass(frozen=True)
class LocalHandle:
    """One started process, the file it prints to, and what holds it to its size."""

    process: "subprocess.Popen[bytes] | ForkedProcess | AdoptedProcess"
    log: Path
    confinement: Confinement | None = None


class LocalPlatform:
    """Starts members with this interpreter. `prefix` may put a command before theirs, such as `ip netns exec NAME`.

    Members are forked from a zygote, which has imported torch before. Those with a command before theirs are started as
    new processes. So are members with a size: memory that they had from a zygote would not be counted as theirs, and
    the limit would allow more than it says.
    """

    def __init__(self, prefix: Callable[[Launch], Sequence[str]] | None = None, *, forks: bool = True) -> None:
        """`forks` says whether there may be zygotes at all."""
        self._prefix = prefix or (lambda launch: ())
        self._forks = forks
        self._logs = Path(tempfile.mkdtemp(prefix="zooid-logs-"))
        self._confinements: set[Confinement] = set()
        weakref.finalize(self, shutil.rmtree, self._logs, ignore_errors=True)
        weakref.finalize(self, _remove_all, self._confinements)  # also at the end of the interpreter

    def expect(self, num_threads: int, *, uses_gpus: bool = False) -> None:
        """Start importing what such members will need, in the background, so that they can start at once."""
        if self._forks:
            ready_zygote(member_environment(num_threads, uses_gpus=uses_gpus))

    def launch(self, launch: Launch) -> LocalHandle:
        """Start a process; one with a size is held to it from its first instruction, or refused."""
        log = self._logs / f"{launch.member}.log"
        log.write_bytes(b"")
        environment = member_environment(launch.num_threads, uses_gpus=launch.uses_gpus)
        prefix = list(self._prefix(launch))
        if self._forks and launch.size is None and not prefix:
            return LocalHandle(fork_member(launch, environment, log), log)
        command = [*prefix, sys.executable, "-m", f"zooid.{launch.program}", launch.spec_url]
        confinement = None
        if launch.size is not None:
            confinement = confine(launch.size)
            self._confinements.add(confinement)
            command = [*confinement.prefix, *command]  # outermost: a network namespace may hide the cgroups
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return LocalHandle(process, log, confinement)

    def locate(self, handle: LocalHandle) -> dict[str, str]:
        pid = handle.process.pid
        return {} if pid is None else place_of(pid, handle.log)

    def find(self, place: Mapping[str, str]) -> LocalHandle | None:
        found = process_at(place)
        return None if found is None else LocalHandle(*found)

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
        with suppress(OSError):  # of an adopted member, whoever started it may have removed the log
            return handle.log.read_text(errors="replace")
        return ""

    def leave(self, handle: LocalHandle) -> None:
        """A member with a size keeps it, and its cgroups are swept after its end, when the next ones are made."""
        if handle.confinement is not None:
            self._confinements.discard(handle.confinement)

    def terminate(self, handle: LocalHandle) -> None:
        """The member's whole session ends, whatever it may have started itself."""
        session = handle.process.pid
        _signal_session(session, signal.SIGTERM)
        try:
            handle.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            _signal_session(session, signal.SIGKILL)
            handle.process.wait()
        _signal_session(session, signal.SIGKILL)  # what it had started may have outlived it
        if handle.confinement is not None:
            handle.confinement.remove()
            self._confinements.discard(handle.confinement)


def _remove_all(confinements: set[Confinement]) -> None:
    while confinements:
        confinements.pop().remove()


def _signal_session(session: int | None, number: signal.Signals) -> None:
    if session is not None:
        with suppress(ProcessLookupError):
            os.killpg(session, number)
