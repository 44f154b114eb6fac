"""How the bytes of a transfer get from one member to another."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from zooid.core.errors import CommError

COLLECTIVE = 0
POINT_TO_POINT = 1


class Message(NamedTuple):
    """Names one message of a group, for good: no name is used twice between the same two ranks."""

    kind: int
    """COLLECTIVE or POINT_TO_POINT."""
    tag: int
    """The caller's, of a point-to-point message."""
    number: int
    """Of the collective call, or of the message between these two ranks with this tag."""
    part: int = 0
    """Number of the transfer in its list."""


Done: TypeAlias = Callable[[BaseException | None], object]
"""Called once, from any thread, with what went wrong if anything did."""


def wrong_size(given_bytes: int, expected_bytes: int, source: int | None = None) -> CommError:
    whose = "" if source is None else f" from rank {source}"
    return CommError(
        f"a message of {given_bytes} bytes arrived{whose} where {expected_bytes} were expected: do all ranks make the "
        "same call with tensors of the same size and type?"
    )


class Landing(Protocol):
    """Where a message goes when it arrives. Raises CommAborted when nobody wants it any more."""

    def memory(self) -> memoryview:
        """Memory to write the message to, piece by piece; asked for when its first bytes are there."""

    def take(self, data: memoryview, began_s: float) -> None:
        """The whole message, in memory of its own that may be kept, but not written to; and when it began to come."""


class Transport(Protocol):
    """Moves named messages between the ranks of one group. Every call returns at once."""

    on_failure: Callable[[BaseException], None]
    """Set by whoever uses the transport; called when it fails for everyone, as when a peer gives up. When a peer is
    lost, calls that need something from it fail by themselves, and others may still end well."""

    lost: set[int]
    """Ranks that have left, or whose connections broke by themselves, where there are connections."""

    @property
    def trouble(self) -> str | None:
        """What keeps messages from moving at present, as far as this rank can see."""

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, place: int | None = None
    ) -> None:
        """Hand over the bytes; they may be changed as soon as `done` was called.

        `place` says how many messages of the call this rank sends before this one.
        """

    def receive(
        self,
        message: Message,
        source: int,
        num_bytes: int,
        landing: Landing,
        done: Done,
        place: int | None = None,
        is_answer: bool = False,
    ) -> None:
        """Bring the message to where it shall land, once it has arrived.

        `place` says that the source is as far as this rank when this rank has sent its own message of that place, and
        `is_answer` that the source has to take others before it can send this one.
        """

    def receive_any(
        self,
        candidates: Callable[[], list[tuple[int, Message]]],
        claim: Callable[[int, Message], bool],
        num_bytes: int,
        landing: Landing,
        done: Done,
    ) -> None:
        """Take the first message that arrives of those that `candidates` names, from whichever rank.

        `claim` is asked before a message is taken, and refuses what another call has taken meanwhile.
        """

    def finished(self, number: int) -> None:
        """This rank has finished all collective calls up to and including this one."""

    def close(self, reason: str | None) -> None:
        """Leave the group: in peace after everything sent has been delivered, or at once and for a reason."""
