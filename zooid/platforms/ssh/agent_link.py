"""The link to the agent on another machine: one ssh process, at whose other end the agent serves."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.programs import agent_program

_READ_PROGRAM = """
import os
line = program = b""
while line[-1:] != b"\\n":
    line += os.read(0, 1) or os._exit(1)
while len(program) < int(line):
    program += os.read(0, int(line) - len(program)) or os._exit(1)
exec(compile(program, "zooid", "exec"))
"""
"""The first line of the input says how long the program is; requests follow it, and must not be read with it."""
_CONNECT_S = 10
_ALIVE_S, _NUM_ALIVE = 3, 3
"""A machine that is silent for so many seconds, so many times, counts as cut off."""


class SshMachine(NamedTuple):
    """A machine as ssh knows it."""

    host: str
    python: str = "python3"
    """Path of the interpreter there, which has torch and obstore."""
    config: str = ""
    """Path of an ssh configuration file; empty for the user's own."""


class SshPool(NamedTuple):
    """Machines that are alike, and how many members each has room for."""

    machines: tuple[SshMachine, ...]
    room: int = 1


def open_agent(machine: SshMachine) -> LineLink:
    """Start an agent on a machine, and return the link to it when it answers."""
    link = LineLink(
        machine.host, ssh_command(machine.host, [machine.python, "-u", "-c", _READ_PROGRAM], machine.config)
    )
    program = agent_program().encode()
    try:
        link.send(f"{len(program)}\n".encode() + program)
        link.ask("ping")
    except Unreachable:
        link.close()
        raise
    return link


def ssh_command(host: str, command: Sequence[str], config: str = "") -> list[str]:
    """Return the command that runs another one on a host, without asking for anything."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": _CONNECT_S,
        "ServerAliveInterval": _ALIVE_S,
        "ServerAliveCountMax": _NUM_ALIVE,
        "ForwardAgent": "no",
        "ForwardX11": "no",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", *(["-F", config] if config else []), *words, "-T", "--", host, shlex.join(command)]
