"""What one rank has for another: which messages go at once, which are offered first, and which wait to be offered.

Both sides of a pair count, so that neither can fill the other's memory, and neither stops reading. A sender has credit
for small messages that its reader has not taken yet. What goes beyond that, and every large message, is sent when its
reader is ready. Offers, and readiness that is told in advance, are limited in number.
"""

import threading
from collections import deque
from collections.abc import Callable

from zooid.comm.tcp.frames import Frame, FrameKind
from zooid.comm.transport_protocol import Done, Message
from zooid.core.errors import CommError, PeerLost
from zooid.schedule.stream_rules import EAGER_BYTES

CREDIT_BYTES = 16 * 2**20
"""Small messages from one peer, with what it costs to keep them, that its reader has not taken yet."""
_KEEPING_BYTES = 1024
"""What it costs to keep one small message, beside its bytes."""
MAX_WAITING = 2**14
"""Offers that a reader has not answered, and messages that it is ready for before they were offered."""

SendFrame = Callable[[Frame, memoryview | None, Done | None], None]
SendPieces = Callable[[Message, memoryview, Done], None]


def cost_bytes(num_bytes: int) -> int:
    """What a small message takes of the credit."""
    return num_bytes + _KEEPING_BYTES


class Outbox:
    """Messages from this rank to one peer."""

    def __init__(self, peer: int, send_frame: SendFrame, send_pieces: SendPieces) -> None:
        self._peer = peer
        self._send_frame = send_frame
        self._send_pieces = send_pieces
        self._lock = threading.Lock()
        self._credit_bytes = CREDIT_BYTES
        self._ready: dict[Message, int] = {}
        """Messages that the reader has a place for, with their sizes, and that this rank has not sent yet."""
        self._unsent: dict[Message, tuple[memoryview, Done]] = {}
        """Messages that the reader has no place for yet."""
        self._offered: set[Message] = set()
        """Unsent messages that the reader knows of."""
        self._held: deque[Message] = deque()
        """Unsent messages that are not offered yet, for there are too many."""
        self._gone: str | None = None

    def send(self, message: Message, data: memoryview, done: Done) -> None:
        num_bytes = data.nbytes
        if num_bytes <= EAGER_BYTES and self._use_credit(num_bytes + _KEEPING_BYTES):
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
        """The peer has a place for a message."""
        with self._lock:
            unsent = self._unsent.get(message)
            if unsent is None:
                if message in self._ready or len(self._ready) >= MAX_WAITING:
                    raise CommError(f"it is ready for more than {MAX_WAITING} messages, or for one of them twice")
                self._ready[message] = num_bytes
                return
            if unsent[0].nbytes != num_bytes:  # the offer lets the reader say what is wrong
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
        """The peer has taken small messages."""
        with self._lock:
            if self._credit_bytes + num_bytes > CREDIT_BYTES:
                raise CommError(f"it gave back credit for {num_bytes} bytes that nobody had sent")
            self._credit_bytes += num_bytes

    def close(self, why: str) -> list[Done]:
        """Take no more; who waits for something that was to be sent."""
        with self._lock:
            self._gone = why
            waiting = [done for _, done in self._unsent.values()]
            self._unsent.clear()
            self._held.clear()
            self._ready.clear()
        return waiting

    def _offer(self, message: Message) -> bool:
        """Whether a message may be offered now. The lock is held."""
        if len(self._offered) >= MAX_WAITING:
            self._held.append(message)
            return False
        self._offered.add(message)
        return True

    def _next_offers(self) -> list[tuple[Message, int]]:
        """Held messages that may be offered now. The lock is held."""
        offers = []
        while self._held and len(self._offered) < MAX_WAITING:
            message = self._held.popleft()
            if message in self._unsent:  # its reader may have been ready without an offer
                self._offered.add(message)
                offers.append((message, self._unsent[message][0].nbytes))
        return offers
