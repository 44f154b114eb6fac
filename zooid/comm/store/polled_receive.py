"""A receive that waits for its message in a store."""

import time
from dataclasses import dataclass, field
from typing import TypeAlias

from zooid.comm.transport_protocol import COLLECTIVE, POINT_TO_POINT, Candidates, Claim, Done, Landing, Message
from zooid.schedule.arrival_times import UNKNOWN, Arrival
from zooid.schedule.polling_rules import LARGE_BYTES, SMALL_BYTES, is_urgent

Edge: TypeAlias = tuple[int, int, int, bool]
"""Source, kind of call, size from small to large, and whether they are answers, of messages that are alike."""


@dataclass(eq=False)
class PolledReceive:
    """A receive that waits for its message."""

    candidates: Candidates
    """Returns the one message to receive, or the next message of every rank."""
    claim: Claim
    num_bytes: int
    landing: Landing
    done: Done
    order: tuple[int, int, int] = (0, 0, 0)
    source: int | None = None
    message: Message | None = None
    expected_after: int | None = None
    is_answer: bool = False
    begun_s: float = field(default_factory=time.monotonic)
    expected_s: float | None = None
    """Time since which the message is expected; None before that."""
    is_in_flight: bool = False
    previous_s: float | None = None
    """When the message before it arrived; None as long as that has not, and for the first one."""
    event: int = 0
    """The event after which it is expected (see `message_lines`)."""
    arrival: Arrival = UNKNOWN
    """How long after that event it usually arrives."""
    missing_s: float | None = None
    """When the store last said that the message is missing; None if it never did."""
    last_poll_s: float = 0.0
    next_poll_s: float = 0.0
    num_misses: int = 0
    num_damaged: int = 0
    num_failures: int = 0
    """Number of failures of the store in a row."""
    lag_s: float = 0.0
    """Time from when the message is expected to the first poll."""

    @property
    def line(self) -> int | None:
        """The rank whose messages come one after the other, of which this is one; None if it stands in no line."""
        return self.source if self.message is not None and self.message.kind == POINT_TO_POINT else None

    @property
    def edge(self) -> Edge | None:
        """The messages that are alike, of which this is one; None if messages of all ranks are received.

        Answers differ from others, because a rank that begins a call late is late with its own parts, but not with
        answers.
        """
        if self.message is None or self.source is None:
            return None
        kind = self.message.kind if self.message.kind == COLLECTIVE else 1 + self.message.tag
        return self.source, kind, (self.num_bytes > SMALL_BYTES) + (self.num_bytes > LARGE_BYTES), self.is_answer

    @property
    def is_urgent(self) -> bool:
        return self.message is None or is_urgent(self.num_bytes)

    def begin_to_expect(self, since_s: float, lag_s: float) -> None:
        """Poll for the message after its lag."""
        self.expected_s = self.last_poll_s = since_s
        self.num_misses = 0
        self.lag_s = lag_s
        self.next_poll_s = since_s + lag_s
