"""Records of a member's life outside its own program: its handle, its start and its end."""

import signal
from typing import ClassVar

from zooid.core.records import FileRecord, Record, require_name
from zooid.core.runs.events import StoreUsed
from zooid.core.units import format_bytes


class MemberHandle(FileRecord, frozen=True, kw_only=True, tag="member_handle"):
    """A handle with which any coordinator can find a member. It is written before the member is launched."""

    VERSION: ClassVar[int] = 2

    version: int = 2
    run: str
    member: str
    platform: str
    offer: str
    launched_at_s: float
    """Unix time on the clock of the coordinator that launched it."""
    place: dict[str, str]
    """The platform's own data for finding the member; only the platform reads it."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_name("member", self.member)


class MemberStart(FileRecord, frozen=True, kw_only=True, tag="member_start"):
    """A claim on the start of a member, written create-only. Whoever does not get it does not run the member."""

    member: str
    nonce: str
    """Random text of the writer, which distinguishes two writers."""
    is_cancelled: bool = False
    """Whether the coordinator has written it, so that a member that it has given up never starts."""
    at_s: float | None = None
    """Unix time of the claim on the clock of its writer; None if an older zooid has written it."""


class Exit(Record, frozen=True):
    """How a member ended."""

    status: int | None
    """The exit status, negative for a signal, as in subprocess; None if it is unknown."""
    exceeded_bytes: int | None = None
    """The memory limit, if the kernel killed the member for exceeding it; else None."""
    peak_bytes: int | None = None
    """The most memory that the member had; None if it is unknown."""
    predicted_bytes: int | None = None
    """The memory that the plan predicted for the member; None if nothing was predicted."""
    ran_s: float | None = None
    """How long the member occupied its place, from the start of its first process on; None if it is unknown."""
    billed_s: float | None = None
    """How long the platform bills the member for, start-up included; None if the platform does not say."""
    used: StoreUsed | None = None
    """Requests of the program that attended the member, beside the member's own; None if they are unknown."""
    reason: str = ""
    """Why the member could not be started, or was ended; empty if its status says it."""
    output: str = ""
    """The last lines that were printed while it was started, if it could not be started."""
    is_assumed: bool = False
    """Whether the platform only assumes the end, because it does not reach the place of the member any more."""

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        if self.exceeded_bytes is not None:
            peak = "" if self.peak_bytes is None else f", and had up to {format_bytes(self.peak_bytes)}"
            limit = format_bytes(self.exceeded_bytes)
            predicted = "" if self.predicted_bytes is None else f"; predicted: {format_bytes(self.predicted_bytes)}"
            return f"was ended by the kernel: it used more than its {limit} of memory{peak}{predicted}"
        if self.reason:
            return self.reason
        if self.status is None:
            return "is gone; how it ended is not known"
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "unknown"
        return f"was killed by signal {-self.status} ({name})"


class MemberEnd(FileRecord, frozen=True, kw_only=True, tag="member_end"):
    """The last record of a member. The process that started it writes it."""

    member: str
    exit: Exit
