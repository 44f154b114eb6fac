"""The link to the agent on another machine: one ssh process, at whose other end the agent serves."""

import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.programs import agent_program

_OLDEST_PYTHON = (3, 9)
"""The oldest Python that can run the agent. Whether it is new enough for zooid is seen when a member starts."""
_TOO_OLD = (
    f"the coordinator has Python {sys.version_info[0]}.{sys.version_info[1]}, and %s on this machine is Python %d.%d; "
    "give another one as python in the file of machines"
)
_LOAD = (
    f'import os, sys; sys.version_info >= {_OLDEST_PYTHON} or sys.exit("{_TOO_OLD}" % ((sys.executable,) + '
    'sys.version_info[:2])); exec(b"".join(iter(lambda: os.read(0, 1) or os._exit(1), bytes(1))))'
)
"""Executes the input up to a null byte, which is the agent's program. Requests follow it, and are not read with it.

It is one line, without single quotes, backslashes and exclamation marks, since not all login shells quote them alike.
"""
_CONNECT_S = 10
_ALIVE_S, _NUM_ALIVE = 3, 3
"""A machine that is silent for so many seconds, so many times, counts as cut off."""


class SshMachine(NamedTuple):
    """A machine as ssh knows it."""

    host: str
    python: str = "python3"
    """Path of the interpreter there, which has torch and obstore; `~/` is the home folder there."""
    config: str = ""
    """Path of an ssh configuration file; empty for the user's own."""


class SshPool(NamedTuple):
    """Machines that are alike, and how many members each has room for."""

    machines: tuple[SshMachine, ...]
    room: int = 1


def open_agent(machine: SshMachine) -> LineLink:
    """Start an agent on a machine, and return the link to it when it answers."""
    link = LineLink(machine.host, ssh_command(machine.host, [machine.python, "-u", "-c", _LOAD], machine.config))
    try:
        link.send(agent_program().encode() + b"\0")
        link.ask("ping")
    except Unreachable:
        link.close()
        raise
    link.end_in_silence()  # ssh does not notice it on a connection that it shares with others
    return link


def ssh_command(host: str, command: Sequence[str], config: str = "") -> list[str]:
    """Return the command that runs another one on a host, without asking for anything.

    Words of the command that begin with `~/` are paths below the home folder there.
    """
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": _CONNECT_S,
        "ServerAliveInterval": _ALIVE_S,
        "ServerAliveCountMax": _NUM_ALIVE,
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",  # the user's own would be a second command, which ssh rejects
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", *(["-F", config] if config else []), *words, "-T", "--", host, " ".join(map(shell_path, command))]


def shell_path(path: str) -> str:
    """Quote a path for a shell, except for the home folder that it may begin with."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)
