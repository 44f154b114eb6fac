"""Messages from this rank to one peer: some are sent at once, others are offered first or wait to be offered.

Both sides of a pair count, so neither can fill the other's memory, and neither stops reading. A sender has credit for
small messages that its reader has not received yet. Beyond the credit, and for every large message, it waits until the
reader has posted the receive. The numbers of open offers and of receives announced ahead are limited.
"""

import threading
from collections import deque
from collections.abc import Callable

from zooid.comm.tcp.frames import Frame, FrameKind
from zooid.comm.transport_protocol import Done, Message
from zooid.core.errors import CommError, PeerLost
from zooid.schedule.stream_rules import EAGER_BYTES

CREDIT_BYTES = 16 * 2**20
"""Bytes of small messages, with their overhead, that a sender may send before the reader receives them."""
_OVERHEAD_BYTES = 1024
"""Memory that one kept message takes beside its own bytes."""
MAX_WAITING = 2**14
"""Maximum number of unanswered offers, and of receives that are announced before their messages are offered."""

SendFrame = Callable[[Frame, memoryview | None, Done | None], None]
SendPieces = Callable[[Message, memoryview, Done], None]


def cost_bytes(num_bytes: int) -> int:
    """Return the credit that a small message uses."""
    return num_bytes + _OVERHEAD_BYTES


class Outbox:
    """Messages from this rank to one peer."""

    def __init__(self, send_frame: SendFrame, send_pieces: SendPieces) -> None:
        self._send_frame = send_frame
        self._send_pieces = send_pieces
        self._lock = threading.Lock()
        self._credit_bytes = CREDIT_BYTES
        self._ready: dict[Message, int] = {}
        """Sizes of messages whose receive is posted, and which this rank has not sent yet."""
        self._unsent: dict[Message, tuple[memoryview, Done]] = {}
        """Messages whose receive is not posted yet."""
        self._offered: set[Message] = set()
        """Unsent messages that the reader knows of."""
        self._held: deque[Message] = deque()
        """Unsent messages that are not offered yet, because too many others are."""
        self._gone: str | None = None
        """Why the peer takes nothing any more; None while it is there."""

    def send(self, message: Message, data: memoryview, done: Done) -> None:
        num_bytes = data.nbytes
        if num_bytes <= EAGER_BYTES and self._use_credit(num_bytes + _OVERHEAD_BYTES):
            self._send_frame(Frame(FrameKind.EAGER, message, num_bytes, 0, num_bytes), data, done)
        else:
            self._send_when_ready(message, data, done)

    def _use_credit(self, num_bytes: int) -> bool:
        with self._lock:
            if self._gone is not None or num_bytes > self._credit_bytes:
                return False
            self._credit_bytes -= num_bytes
        return True

    def _send_when_ready(self, message: Message, data: memoryview, done: Done) -> None:
        num_bytes = data.nbytes
        with self._lock:
            gone = self._gone
            is_ready = self._ready.pop(message, None) == num_bytes
            is_offered = False
            if gone is None and not is_ready:
                self._unsent[message] = (data, done)
                is_offered = self._offer(message)
        if gone is not None:
            done(PeerLost(gone))
        elif is_ready:
            self._send_pieces(message, data, done)
        elif is_offered:
            self._send_frame(Frame(FrameKind.OFFER, message, num_bytes), None, None)

    def on_ready(self, message: Message, num_bytes: int) -> None:
        """Send a message whose receive the peer has posted, or note that it is posted."""
        with self._lock:
            unsent = self._unsent.get(message)
            if unsent is None:
                if message in self._ready or len(self._ready) >= MAX_WAITING:
                    raise CommError(f"it announced more than {MAX_WAITING} receives, or one of them twice")
                self._ready[message] = num_bytes
                return
            if unsent[0].nbytes != num_bytes:  # an offer lets the reader report the wrong size
                if message in self._offered:
                    return
                self._offered.add(message)
                next_offers = [(message, unsent[0].nbytes)]
            else:
                self._unsent.pop(message)
                self._offered.discard(message)
                next_offers = self._next_offers()
        for offered, size_bytes in next_offers:
            self._send_frame(Frame(FrameKind.OFFER, offered, size_bytes), None, None)
        if unsent[0].nbytes == num_bytes:
            self._send_pieces(message, *unsent)

    def on_credit(self, num_bytes: int) -> None:
        """Take credit back for small messages that the peer has received."""
        with self._lock:
            if self._credit_bytes + num_bytes > CREDIT_BYTES:
                raise CommError(f"it returned credit for {num_bytes} bytes that this rank had not sent")
            self._credit_bytes += num_bytes

    def close(self, why: str) -> list[Done]:
        """Accept no more messages, and return the callbacks of those that were not sent."""
        with self._lock:
            self._gone = why
            unsent = [done for _, done in self._unsent.values()]
            self._unsent.clear()
            self._held.clear()
            self._ready.clear()
        return unsent

    def _offer(self, message: Message) -> bool:
        """Offer a message, or hold it back; return whether it is offered now. The lock is held."""
        if len(self._offered) >= MAX_WAITING:
            self._held.append(message)
            return False
        self._offered.add(message)
        return True

    def _next_offers(self) -> list[tuple[Message, int]]:
        """Return held messages that may be offered now. The lock is held."""
        offers = []
        while self._held and len(self._offered) < MAX_WAITING:
            message = self._held.popleft()
            if message in self._unsent:  # its receive may have been posted without an offer
                self._offered.add(message)
                offers.append((message, self._unsent[message][0].nbytes))
        return offers
