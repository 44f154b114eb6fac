"""Slurm's commands, given on this machine or on one where users log in."""

import os
import secrets
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from zooid.core.environment import SLURM_VARIABLES, slurm_environment
from zooid.core.errors import ZooidError
from zooid.platforms.line_link import end_child
from zooid.platforms.ssh.agent_link import ssh_command

_ANSWER_S = 60.0
"""Slurm's own patience with a busy controller is 10 s, several times over."""
_LISTING_S = 10.0
"""Seconds to wait for a list of jobs or nodes. Earlier ones are used instead, while the coordinator goes on."""
_LISTINGS = ("squeue", "sinfo")
_RETRY_S = 5.0
"""Seconds between two attempts to log in."""
_END_S = 2.0
_CLEAN = " ".join(("env -i", *(f'${{{name}:+{name}="${name}"}}' for name in SLURM_VARIABLES)))
"""Prefix that runs a command with these variables alone, and only those of them that are set."""
_CHUNK_BYTES = 1 << 16


class SlurmUnreachable(ZooidError):
    """Slurm's commands cannot be given, or its controller does not answer."""


class SlurmRefusal(ZooidError):
    """Slurm has answered a command with an error."""


class Cluster(NamedTuple):
    """Where Slurm's commands of a cluster work."""

    login: str = ""
    """A host that ssh reaches; empty if they work on this machine."""
    config: str = ""
    """Path of an ssh configuration file; empty for the user's own."""


class ClusterCommands:
    """Gives commands to one cluster: as processes of this machine, or over one ssh connection that is kept open."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shell: _LoginShell | None = None
        self._tried_s = -_RETRY_S
        self._why = ""
        self._lock = threading.Lock()

    def give(self, command: Sequence[str], text: str = "") -> str:
        """Give a command, with this text as its input, and return what it prints."""
        with self._lock:
            status, printed = self._given(command, text) if self._cluster.login else _given_here(command, text)
        if status == 0:
            return printed
        words = " ".join(line.strip() for line in printed.splitlines() if line.strip()) or f"status {status}"
        if any(sign in printed for sign in _SIGNS_OF_SILENCE) or status == _STATUS_NO_PROGRAM:
            raise SlurmUnreachable(f"{command[0]} failed{self._where}: {words}")
        raise SlurmRefusal(words.replace(f"{command[0]}: error: ", ""))

    def close(self) -> None:
        """Close the connection, if there is one; the next command opens another."""
        with self._lock:
            if self._shell is not None:
                self._shell.close()
                self._shell = None
            self._tried_s = -_RETRY_S

    @property
    def _where(self) -> str:
        return f" on {self._cluster.login}" if self._cluster.login else ""

    def _given(self, command: Sequence[str], text: str) -> tuple[int, str]:
        """Give a command on the machine where users log in."""
        is_new = self._shell is None
        if self._shell is None:
            if time.monotonic() - self._tried_s < _RETRY_S:
                raise SlurmUnreachable(self._why)
            self._tried_s = time.monotonic()
            self._shell = _LoginShell(self._cluster)
        try:
            if is_new:
                self._shell.give(["true"], "")  # what profiles print comes before the end of the first command
            return self._shell.give(command, text)
        except SlurmUnreachable as error:
            self._why = str(error)
            self._shell.close()
            self._shell = None
            raise


_STATUS_NO_PROGRAM = 127
_SIGNS_OF_SILENCE = ("Unable to contact slurm controller", "Socket timed out", "Connection refused")
"""What commands print if the controller does not answer, which says nothing about jobs."""


def _answer_s(command: Sequence[str]) -> float:
    """Return how long to wait for the answer to a command."""
    return _LISTING_S if command[0] in _LISTINGS else _ANSWER_S


def _given_here(command: Sequence[str], text: str) -> tuple[int, str]:
    limit_s = _answer_s(command)
    try:
        answer = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=slurm_environment(),
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            start_new_session=True,  # Ctrl-C is for the coordinator, which still has to end its members
        )
    except FileNotFoundError as error:
        raise SlurmUnreachable(
            f"there is no program {command[0]} on this machine; name a machine that has it as `login` in the file of "
            "machines"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmUnreachable(f"{command[0]} did not answer within {limit_s:g} s") from error
    return answer.returncode, answer.stdout


class _LoginShell:
    """A shell on another machine, which runs one command after the other. It ends with its input."""

    def __init__(self, cluster: Cluster) -> None:
        self._host = cluster.login
        self._process = subprocess.Popen(
            ssh_command(cluster.login, ["sh", "-l"], cluster.config),  # a profile may say where Slurm is installed
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the coordinator, which still has to end its members
        )

    def give(self, command: Sequence[str], text: str) -> tuple[int, str]:
        """Run a command with this text as its input, and return its exit status and what it prints."""
        assert self._process.stdin is not None
        mark = f"zooid-{secrets.token_hex(16)}"
        lines = f"{text}\n" if text and not text.endswith("\n") else text
        request = f"{_CLEAN} {shlex.join(command)} 2>&1 <<'{mark}'\n{lines}{mark}\nprintf '\\n%s %s\\n' {mark} $?\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._unreachable() from error
        answer = self._read_until(f"\n{mark} ".encode(), _answer_s(command)).decode(errors="replace")
        printed, _, status = answer.rpartition(f"\n{mark} ")
        return int(status), printed

    def close(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        end_child(self._process)
        self._process.stdout.close()
        self._process.stderr.close()

    def _read_until(self, mark: bytes, limit_s: float) -> bytes:
        """Read to the end of the line that begins with the mark."""
        assert self._process.stdout is not None
        data = b""
        deadline_s = time.monotonic() + limit_s
        while mark not in data or not data.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise SlurmUnreachable(f"{self._host} did not answer within {limit_s:g} s")
            if select.select([self._process.stdout], [], [], left_s)[0]:
                chunk = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
                if not chunk:
                    raise self._unreachable()
                data += chunk
        return data

    def _unreachable(self) -> SlurmUnreachable:
        """Return an error with the last line that ssh has printed."""
        assert self._process.stderr is not None
        words = b""
        while select.select([self._process.stderr], [], [], _END_S)[0]:
            chunk = os.read(self._process.stderr.fileno(), _CHUNK_BYTES)
            if not chunk:
                break
            words += chunk
        lines = words.decode(errors="replace").strip().splitlines() or ["the connection was closed"]
        return SlurmUnreachable(f"{self._host} cannot be reached: {lines[-1].strip()}")
