"""What zooid asks of a platform: start a member, say whether it still runs, show its log, end it."""

import signal
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Program = Literal["worker", "profiler"]


@dataclass(frozen=True)
class Launch:
    """One member to be started as `python -m zooid.PROGRAM SPEC_URL`."""

    member: str
    program: Program
    spec_url: str
    num_threads: int


@dataclass(frozen=True)
class Exit:
    """How a member ended: a status, negative for a signal, as subprocess has it."""

    status: int

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "unknown"
        return f"was killed by signal {-self.status} ({name})"


Handle = TypeVar("Handle")


class Platform(Protocol[Handle]):
    """Members are started, never imported; a handle is good for this process only."""

    def launch(self, launch: Launch) -> Handle:
        """Start a member."""

    def poll(self, handle: Handle) -> Exit | None:
        """None while it runs."""

    def logs(self, handle: Handle) -> str:
        """What it has printed, also after its end."""

    def terminate(self, handle: Handle) -> None:
        """End it, by force if need be; returns when it is gone. Ending one that is gone is fine."""
