"""The command of SkyPilot, which runs in an environment of its own because it pins libraries against ours."""

import os
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError, ZooidError
from zooid.core.text import quoted

DEFAULT = "sky"
_ANSWER_S = 90.0
"""Seconds to wait for an answer, within which a server of SkyPilot may have to start first."""
_DOWN_S = 900.0
"""Seconds to wait until machines are torn down, which takes minutes on some clouds."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SHOWN_LINES = 3
"""Number of its last lines that say why a command has failed."""


class SkyAnswer(NamedTuple):
    """What a command has printed, and whether it has done what was asked."""

    output: str
    """Its standard output."""
    errors: str
    """Its standard error."""
    status: int

    @property
    def last_words(self) -> str:
        """The last lines, in one: SkyPilot prints its errors to either stream."""
        lines = _COLOURS.sub("", f"{self.output}\n{self.errors}").replace("\r", "\n").splitlines()
        told = [line.strip() for line in lines if line.strip()]
        return quoted(" ".join(told[-_SHOWN_LINES:])) if told else f"status {self.status}"


class SkyFailed(ZooidError):
    """The command has ended with an error, or did not answer."""


class SkyCommand:
    """Gives commands to SkyPilot. All methods may be called from several threads."""

    def __init__(self, program: str, file: str) -> None:
        """`file` is the file of machines, in which the user may name another program."""
        self._program = program
        self._file = file

    @classmethod
    def of(cls, account: Account) -> "SkyCommand":
        return cls(os.path.expanduser(account.options.get("command", DEFAULT)), account.file)

    def give(self, arguments: Sequence[str]) -> str:
        """Run the command with these arguments, and return what it prints; raises SkyFailed if it fails."""
        answer = self.answer(arguments)
        if answer.status != 0:
            raise SkyFailed(f"`sky {arguments[0]}` has failed: {answer.last_words}")
        return answer.output

    def answer(self, arguments: Sequence[str]) -> SkyAnswer:
        """Run the command with these arguments, and return its answer, also if it fails."""
        limit_s = _DOWN_S if arguments[0] == "down" else _ANSWER_S
        try:
            done = subprocess.run(
                [self._program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
                start_new_session=True,  # Ctrl-C is for the coordinator, which still has to end its members
            )
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise InputError(
                f"there is no command {self._program!r}, with which SkyPilot rents machines. It needs an environment "
                "of its own: install it with `python3 -m venv ~/sky && ~/sky/bin/pip install 'skypilot[aws,gcp,azure]'`"
                f", and write a table [skypilot] with command = '~/sky/bin/sky' into {self._file}"
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SkyFailed(f"`sky {arguments[0]}` gave no answer: {quoted(str(error))}") from error
        return SkyAnswer(done.stdout, done.stderr, done.returncode)
