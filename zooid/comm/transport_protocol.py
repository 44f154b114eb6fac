"""The interface between a process group and what carries its messages: an object store or TCP."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from zooid.comm.traffic_counter import Counter
from zooid.core.errors import CommError

COLLECTIVE = 0
POINT_TO_POINT = 1


class Message(NamedTuple):
    """The name of one message of a group. No name is used twice between the same two ranks."""

    kind: int
    """Either COLLECTIVE or POINT_TO_POINT."""
    tag: int
    """The caller's tag of a point-to-point message."""
    number: int
    """Number of the collective call, or of the message among those between these two ranks with this tag."""
    part: int = 0
    """Index of the transfer in its list."""


Done: TypeAlias = Callable[[BaseException | None], object]
"""A callback that is called once, from any thread, with the error or None."""
Candidates: TypeAlias = Callable[[], list[tuple[int, Message]]]
"""Returns the messages that a receive from any rank may take, each with its source."""
Claim: TypeAlias = Callable[[int, Message], bool]
"""Returns whether a receive from any rank gets this message; False where another call has taken it meanwhile."""


def after_all(count: int, done: Done) -> Done:
    """Return a callback that calls `done` once it was called `count` times, and at once on every error."""
    lock = threading.Lock()
    num_left = count

    def one_done(error: BaseException | None) -> None:
        nonlocal num_left
        with lock:
            num_left -= 1
            is_last = num_left == 0
        if is_last or error is not None:
            done(error)

    return one_done


def wrong_size(given_bytes: int, expected_bytes: int, source: int | None = None) -> CommError:
    sender = "" if source is None else f" from rank {source}"
    return CommError(
        f"a message of {given_bytes} bytes arrived{sender} where {expected_bytes} were expected: do all ranks make the "
        "same call with tensors of the same size and type?"
    )


class Landing(Protocol):
    """The destination of a message. Both methods raise CommAborted once the call has ended."""

    def memory(self) -> memoryview:
        """Return the memory to write the message to, piece by piece; asked for when its first bytes are there."""

    def take(self, data: memoryview, began_s: float) -> None:
        """Take the whole message, whose first bytes came at `began_s`. Its memory may be kept, but not written to."""


class Transport(Protocol):
    """Moves named messages between the ranks of one group. Every call returns at once."""

    counter: Counter
    """Counts this rank's messages and requests."""

    on_failure: Callable[[BaseException], None]
    """Called when the transport fails for the whole group, as when a peer gives up. The user of the transport sets it.
    When a peer is lost, only the calls that need it fail; others may still succeed."""

    @property
    def trouble(self) -> str | None:
        """The reason why messages do not move at present, as far as this rank knows; None without trouble."""

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, send_index: int | None = None
    ) -> None:
        """Send the bytes, which may be changed as soon as `done` was called.

        `send_index` is the number of messages of the call that this rank sends before this one.
        """

    def receive(
        self,
        message: Message,
        source: int,
        num_bytes: int,
        landing: Landing,
        done: Done,
        expected_after: int | None = None,
        is_answer: bool = False,
    ) -> None:
        """Bring the message to its landing when it arrives.

        The message is expected once this rank has sent its own message with the index `expected_after`. `is_answer`
        says that the source must itself receive messages before it can send this one.
        """

    def receive_any(self, candidates: Candidates, claim: Claim, num_bytes: int, landing: Landing, done: Done) -> None:
        """Take the first message that arrives among the candidates and that `claim` grants."""

    def finished(self, number: int) -> None:
        """Note that this rank has finished all collective calls up to and including this one."""

    def close(self, reason: str | None) -> None:
        """Leave the group: at once with a reason, or without one after everything sent was delivered."""
