"""What zooid asks of a platform: start a member, find it again, say whether it still runs, show its log, end it."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from zooid.core.units import format_bytes

Program = Literal["worker", "profiler"]


@dataclass(frozen=True)
class Size:
    """What a member is held to: a share of processor time, in cores, and memory that it cannot go beyond."""

    vcpus: float
    memory_bytes: int


@dataclass(frozen=True)
class Launch:
    """One member to be started as `python -m zooid.PROGRAM SPEC_URL`."""

    member: str
    program: Program
    spec_url: str
    num_threads: int
    size: Size | None = None
    """None where the member may use whatever the platform gives it."""
    uses_gpus: bool = False
    """Whether it may compute on the machine's GPUs."""


@dataclass(frozen=True)
class Exit:
    """How a member ended: a status, negative for a signal, as subprocess has it."""

    status: int | None
    """None where nobody has seen how it ended."""
    exceeded_bytes: int | None = None
    """The memory that it was held to, where the kernel ended it for using more."""

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        if self.exceeded_bytes is not None:
            return f"was ended by the kernel: it used more than its {format_bytes(self.exceeded_bytes)} of memory"
        if self.status is None:
            return "is gone; how it ended is not known"
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "unknown"
        return f"was killed by signal {-self.status} ({name})"


Handle = TypeVar("Handle")


class Platform(Protocol[Handle]):
    """Members are started, never imported. A handle is good for this process only, a place for every process."""

    def launch(self, launch: Launch) -> Handle:
        """Start a member."""

    def locate(self, handle: Handle) -> dict[str, str]:
        """The member's place: what another process needs to find it."""

    def find(self, place: Mapping[str, str]) -> Handle | None:
        """A handle for a member that another process has started; None where it cannot be seen from here."""

    def poll(self, handle: Handle) -> Exit | None:
        """None while it runs."""

    def logs(self, handle: Handle) -> str:
        """What it has printed, also after its end."""

    def leave(self, handle: Handle) -> None:
        """Leave it to another process, which has adopted it: it outlives this one."""

    def terminate(self, handle: Handle) -> None:
        """End it, by force if need be; returns when it is gone. Ending one that is gone is fine."""
