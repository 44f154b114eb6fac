"""Tickets: the one argument of the program that every platform starts for a member.

A ticket holds no secret, because command lines can be read by others. Credentials come from where the member runs.
"""

import hashlib
from typing import Literal

from zooid.core.errors import ZooidError
from zooid.core.records import FileRecord, Record, require_name, require_positive
from zooid.core.resources.size import Size
from zooid.core.runs import keys

Program = Literal["worker", "profiler"]
GpuUse = Literal["none", "seen", "shared", "own", "assigned"]


class Versions(Record, frozen=True):
    """Versions that must be the same on all machines of a run."""

    python: str
    """The first two numbers, such as `3.12`."""
    torch: str
    """Without the name of a build, such as `2.13.0`."""

    def __str__(self) -> str:
        return f"Python {self.python} and torch {self.torch}"


class Ticket(FileRecord, frozen=True, kw_only=True, tag="ticket"):
    """What `zooid.entry` needs to run one member as `python -m zooid.PROGRAM SPEC_URL DIGEST`."""

    run: str
    member: str
    roster: int
    """Number of the claim under which the member works."""
    program: Program
    spec_url: str
    spec_digest: str
    """SHA-256 of the spec. A changed spec is not run."""
    num_threads: int
    size: Size | None = None
    """The limits of the member; None means no limits of its own."""
    gpu: GpuUse = "none"
    """How the member uses the GPUs of its machine.

    `none`: they are hidden from it. `seen`: it sees all and claims none, since it does not train. `shared`: it gets a
    GPU of its own, or shares one if all are claimed. `own`: it gets a GPU of its own, or cannot be started. `assigned`:
    the same, but the scheduler of a cluster may have chosen the GPU.
    """
    lifetime_s: float | None = None
    """The time after which the member is ended; None if it may run for any time."""
    given_bytes: int | None = None
    """Memory of the machine that was rented for the member alone; None if the member shares one, or has `size`."""
    ends_by_request: bool = False
    """Whether the member is ended by a request in its store, since its platform lets nobody send it a signal."""
    versions: Versions | None = None
    """The coordinator's versions, for a member on another machine."""
    prefix: tuple[str, ...] = ()
    """A command that runs the member inside something, such as `ip netns exec NAME`."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_name("member", self.member)
        require_positive(self, "num_threads", "lifetime_s", "given_bytes")

    @property
    def uses_gpus(self) -> bool:
        """Whether the member sees GPUs of its machine."""
        return self.gpu != "none"

    @property
    def title(self) -> str:
        """The name of the member among all members of the run, under all of its claims."""
        return title_of(self.member, self.roster)


def title_of(member: str, roster: int) -> str:
    """Return the name of a member among all members of its run, under all claims."""
    return f"{keys.label(roster)}.{member}"


def check_spec(data: bytes | memoryview, spec_url: str, digest: str) -> None:
    """Reject a spec that is not the one whose digest came with the launch."""
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        member = spec_url.rpartition("/")[2].removesuffix(".json")
        raise ZooidError(
            f"{spec_url} has changed since {member} was launched: its SHA-256 is {actual}, and was {digest}; it is not "
            "run"
        )
