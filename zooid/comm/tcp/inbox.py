"""Matches the messages that arrive from one peer with the receives that wait for them.

A small message may arrive before its receive is posted, and is then kept within the sender's credit. The sender of a
large message waits until its receive is posted, so the bytes go straight into the reader's tensor. No memory is taken
beyond posted receives and credit, so neither a fast peer nor a broken one can fill this rank's memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from zooid.comm.tcp.frames import NOBODY, Frame, FrameKind
from zooid.comm.tcp.outbox import CREDIT_BYTES, MAX_WAITING, cost_bytes
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import Done, Landing, Message, wrong_size
from zooid.core.errors import CommError, PeerLost
from zooid.schedule.stream_rules import EAGER_BYTES, piece_bytes

_RETURN_BYTES = CREDIT_BYTES // 4
"""Credit is returned in amounts of at least this size."""


@dataclass(eq=False)
class PostedReceive:
    """A receive that waits for its message."""

    num_bytes: int
    landing: Landing
    done: Done
    posted_s: float
    memory: memoryview | None = None
    offsets: set[int] = field(default_factory=set)
    """Offsets of the pieces that have arrived or are arriving."""
    num_arrived: int = 0
    """Number of bytes in complete pieces."""
    is_ready: bool = False
    """Whether the sender was told that this receive is posted."""
    is_ahead: bool = False
    """Whether the sender was told before it offered the message."""


class Inbox:
    """All messages from one peer to this rank in one group."""

    def __init__(
        self,
        peer: int,
        num_streams: int,
        send: Callable[[Frame], object],
        counter: Counter,
        on_unmatched: Callable[[], None],
    ) -> None:
        """`num_streams` carry large messages. `on_unmatched` is called when a message has no posted receive."""
        self._peer = peer
        self._num_streams = num_streams
        self._send = send
        self._counter = counter
        self._on_unmatched = on_unmatched
        self._lock = threading.Lock()
        self._posted: dict[Message, PostedReceive] = {}
        self._early: dict[Message, memoryview] = {}
        """Small messages that arrived before their receive was posted."""
        self._offers: dict[Message, int] = {}
        """Sizes of offered messages whose receive is not posted."""
        self._used_credit_bytes = 0
        """Credit that the peer has used and not got back."""
        self._owed_credit_bytes = 0
        """Used credit of messages that were received, to be returned."""
        self._num_ahead = 0
        self._unannounced: deque[Message] = deque()
        """Posted receives that the peer will be told of later: too many were announced ahead of their offers."""
        self._gone: str | None = None
        """Why the peer sends nothing any more; None while it is there."""

    def post(self, message: Message, receive: PostedReceive) -> None:
        with self._lock:
            gone = self._gone
            data = self._early.pop(message, None)
            offered_bytes = self._offers.pop(message, None)
            if data is not None:
                returned_bytes = self._release_credit(data.nbytes)
            elif gone is None:
                self._posted[message] = receive
                self._mark_ready(message, receive, is_offered=offered_bytes is not None)
            is_ready = receive.is_ready
        if data is not None:
            self._complete_early(receive, data)
            self._return_credit(returned_bytes)
        elif gone is not None:
            receive.done(PeerLost(gone))
        elif offered_bytes is not None and offered_bytes != receive.num_bytes:
            receive.done(wrong_size(offered_bytes, receive.num_bytes, self._peer))
        elif is_ready:
            self._send(Frame(FrameKind.READY, message, receive.num_bytes))

    def has(self, message: Message) -> bool:
        """Return whether the message has arrived or is offered, and no receive is posted for it."""
        return message in self._early or message in self._offers

    def close(self, why: str) -> list[Done]:
        """Expect nothing more from the peer, and return the callbacks of all posted receives."""
        with self._lock:
            self._gone = why
            pending = [receive.done for receive in self._posted.values()]
            self._posted.clear()
            self._unannounced.clear()
        return pending

    def body_of_eager(self, frame: Frame) -> memoryview:
        """Return the memory for a small message; CommError where the peer may not send it."""
        message = frame.message
        with self._lock:
            self._used_credit_bytes += cost_bytes(frame.num_bytes)
            if self._used_credit_bytes > CREDIT_BYTES:
                raise CommError(f"it sent more than the {CREDIT_BYTES} bytes of small messages that it may send ahead")
            receive = self._posted.get(message)
            if message in self._early if receive is None else receive.is_ready and receive.num_bytes <= EAGER_BYTES:
                raise CommError("it sent a message twice")
        if receive is None or receive.num_bytes != frame.total_bytes:  # `on_eager` reports the wrong size
            return memoryview(bytearray(frame.num_bytes))
        return _memory(receive)

    def on_eager(self, frame: Frame, body: memoryview) -> None:
        if frame.num_bytes == 0:
            self.body_of_eager(frame)
        with self._lock:
            receive = self._posted.pop(frame.message, None)
            if receive is None:
                self._early[frame.message] = body
            else:
                returned_bytes = self._release_credit(frame.num_bytes)
        if receive is None:
            self._on_unmatched()
            return
        if frame.total_bytes != receive.num_bytes:
            receive.done(wrong_size(frame.total_bytes, receive.num_bytes, self._peer))
        elif receive.memory is None:  # it was posted only after the first bytes had arrived
            self._complete_early(receive, body)
        else:
            self._complete(receive)
        self._return_credit(returned_bytes)

    def body_of_piece(self, frame: Frame) -> memoryview:
        """Return the memory for a piece of a large message; CommError where the peer may not send it."""
        with self._lock:
            receive = self._posted.get(frame.message)
            if receive is None or not receive.is_ready:
                raise CommError(f"it sent {frame.num_bytes} bytes of a message that was not asked for")
            is_wrong_size = frame.total_bytes != receive.num_bytes
            size = piece_bytes(frame.total_bytes, self._num_streams)
            is_whole = frame.offset % size == 0 and frame.num_bytes == min(size, frame.total_bytes - frame.offset)
            if not is_wrong_size:
                if not is_whole or frame.offset in receive.offsets:
                    raise CommError(
                        f"it sent {frame.num_bytes} bytes at offset {frame.offset}, which are no piece or came twice"
                    )
                receive.offsets.add(frame.offset)
        if is_wrong_size:
            error = wrong_size(frame.total_bytes, receive.num_bytes, self._peer)
            receive.done(error)
            raise error
        return _memory(receive)[frame.offset : frame.offset + frame.num_bytes]

    def on_piece(self, frame: Frame) -> None:
        if frame.num_bytes == 0:
            self.body_of_piece(frame)
        with self._lock:
            receive = self._posted.get(frame.message)
            if receive is None:  # the peer was lost meanwhile
                return
            receive.num_arrived += frame.num_bytes
            if receive.num_arrived < receive.num_bytes:
                return
            self._posted.pop(frame.message)
            self._num_ahead -= receive.is_ahead
            announced = self._next_announced()
        for message, num_bytes in announced:
            self._send(Frame(FrameKind.READY, message, num_bytes))
        self._complete(receive)

    def on_offer(self, message: Message, num_bytes: int) -> None:
        with self._lock:
            receive = self._posted.get(message)
            if receive is None:
                if self.has(message) or len(self._offers) >= MAX_WAITING:
                    raise CommError(f"it offers more than {MAX_WAITING} messages, or one of them twice")
                self._offers[message] = num_bytes
            else:
                was_ready = receive.is_ready
                receive.is_ready = True
        if receive is None:
            self._on_unmatched()
        elif receive.num_bytes != num_bytes:
            receive.done(wrong_size(num_bytes, receive.num_bytes, self._peer))
        elif not was_ready:
            self._send(Frame(FrameKind.READY, message, num_bytes))

    def _mark_ready(self, message: Message, receive: PostedReceive, *, is_offered: bool) -> None:
        """Decide whether the sender is told now that its receive is posted. The lock is held."""
        if is_offered:
            receive.is_ready = True
        elif receive.num_bytes > EAGER_BYTES:
            if self._num_ahead < MAX_WAITING:
                receive.is_ready = receive.is_ahead = True
                self._num_ahead += 1
            else:
                self._unannounced.append(message)

    def _next_announced(self) -> list[tuple[Message, int]]:
        """Return posted receives, with their sizes, that the sender may be told of now. The lock is held."""
        announced = []
        while self._unannounced and self._num_ahead < MAX_WAITING:
            message = self._unannounced.popleft()
            receive = self._posted.get(message)
            if receive is not None and not receive.is_ready:  # an offer may have arrived meanwhile
                receive.is_ready = receive.is_ahead = True
                self._num_ahead += 1
                announced.append((message, receive.num_bytes))
        return announced

    def _complete_early(self, receive: PostedReceive, data: memoryview) -> None:
        if data.nbytes != receive.num_bytes:
            receive.done(wrong_size(data.nbytes, receive.num_bytes, self._peer))
            return
        try:
            receive.landing.memory()[:] = data
        except CommError as error:  # the call has ended meanwhile
            receive.done(error)
            return
        self._complete(receive)

    def _complete(self, receive: PostedReceive) -> None:
        waited_s = time.monotonic() - receive.posted_s
        self._counter.add(num_messages_received=1, received_bytes=receive.num_bytes, waited_s=waited_s)
        receive.done(None)

    def _release_credit(self, num_bytes: int) -> int:
        """Note that a small message was received, and return the credit to give back now. The lock is held."""
        self._owed_credit_bytes += cost_bytes(num_bytes)
        if self._owed_credit_bytes < _RETURN_BYTES:
            return 0
        returned_bytes, self._owed_credit_bytes = self._owed_credit_bytes, 0
        self._used_credit_bytes -= returned_bytes
        return returned_bytes

    def _return_credit(self, num_bytes: int) -> None:
        if num_bytes:
            self._send(Frame(FrameKind.CREDIT, NOBODY, num_bytes))


def _memory(receive: PostedReceive) -> memoryview:
    """Return the memory that a message lands in; scratch memory where the call has ended meanwhile."""
    if receive.memory is None:
        try:
            receive.memory = receive.landing.memory()
        except CommError:
            receive.memory = memoryview(bytearray(receive.num_bytes))
    return receive.memory
