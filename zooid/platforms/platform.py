"""The operations that zooid needs of a platform: launch, has_room, locate, find, poll, logs, leave and terminate."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from zooid.core.units import format_bytes

Program = Literal["worker", "profiler"]


@dataclass(frozen=True)
class Size:
    """Limits of a member: processor time, in cores, and memory."""

    vcpus: float
    memory_bytes: int


@dataclass(frozen=True)
class Launch:
    """A member to start as `python -m zooid.PROGRAM SPEC_URL`."""

    member: str
    program: Program
    spec_url: str
    num_threads: int
    size: Size | None = None
    """The limits of the member; None means no limits of its own."""
    uses_gpus: bool = False
    """Whether the member may use the GPUs of the machine."""
    offer: str = ""
    """Name of the offer on which the member runs."""
    trains: bool = True
    """Whether the member trains; otherwise it only prepares, checks or plans a run."""
    lifetime_s: float | None = None
    """The time after which the platform ends the member; None if it never does."""


@dataclass(frozen=True)
class Exit:
    """How a member ended."""

    status: int | None
    """The exit status, negative for a signal, as in subprocess; None if it is unknown."""
    exceeded_bytes: int | None = None
    """The memory limit, if the kernel killed the member for exceeding it; else None."""

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
    """Starts members, which are never imported; a handle is valid in this process only, a location in any."""

    def launch(self, launch: Launch) -> Handle:
        """Start a member."""

    def has_room(self, num_members: int, offer: str) -> bool:
        """Whether so many more members can be started now on the offer of this name."""

    def locate(self, handle: Handle) -> dict[str, str]:
        """The location of a member, by which another process can find it."""

    def find(self, location: Mapping[str, str]) -> Handle | None:
        """A handle for a member of another process; None if it cannot be seen from here."""

    def poll(self, handle: Handle) -> Exit | None:
        """How a member ended; None while it runs."""

    def logs(self, handle: Handle) -> str:
        """The output of a member, also after its end."""

    def leave(self, handle: Handle) -> None:
        """Leave a member to another process, which has adopted it, so that it outlives this one."""

    def terminate(self, handle: Handle) -> None:
        """End a member, by force if necessary, and return when it is gone; it may be gone already."""
