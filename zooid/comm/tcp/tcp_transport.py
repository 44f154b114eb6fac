"""The TCP transport of one group: each peer has an outbox for its messages and an inbox for its frames."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from zooid.comm.tcp.frames import MAX_REASON_BYTES, NOBODY, Frame, FrameKind
from zooid.comm.tcp.inbox import Inbox, PostedReceive
from zooid.comm.tcp.outbox import Outbox
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import Candidates, Claim, Done, Landing, Message, after_all
from zooid.core.errors import PeerLost
from zooid.schedule.stream_rules import num_stripes, piece_bytes

GRACE_S = 0.3
"""When one stream of a peer breaks, its other streams have this long to deliver what the peer had sent."""
_LEAVE_TIMEOUT_S = 10.0


class Carrier(Protocol):
    """One of the streams to a peer: all of it, or the part that belongs to one group."""

    def start(self) -> None:
        """Begin to read."""

    def send(self, frame: Frame, body: memoryview | None = None, done: Done | None = None) -> None:
        """Queue a frame; `done` is called when the body has left this process."""

    def send_now(self, frame: Frame, body: bytes) -> bool:
        """Send a last frame unless others are queued before it, and return whether it was sent."""

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything that was sent is certain to be delivered."""

    def end_sending(self) -> None:
        """Declare that nothing more will be sent."""

    def cut(self) -> None:
        """End the stream at once."""


@dataclass(eq=False)
class _ReceiveFromAny:
    candidates: Candidates
    claim: Claim
    receive: PostedReceive


class TcpTransport:
    """All streams of one rank in one group; streams[rank][0] carries small messages, the others large ones."""

    def __init__(self) -> None:
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self.counter = Counter()
        self._streams: Mapping[int, Sequence[Carrier]] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self._from_any: list[_ReceiveFromAny] = []
        self._gone: set[int] = set()
        """Peers that have left or were lost."""
        self._num_ended: defaultdict[int, int] = defaultdict(int)
        """Number of streams of each peer that have ended."""
        self._is_closed = False

    @property
    def trouble(self) -> None:
        """A broken connection fails at once, so there is never anything to report."""

    def start(self, streams: Mapping[int, Sequence[Carrier]]) -> None:
        self._streams = streams
        for peer, (small, *large) in streams.items():
            self._inboxes[peer] = Inbox(peer, len(large), small.send, self.counter, self._match_any)
            self._outboxes[peer] = Outbox(small.send, partial(_send_pieces, large))
        for stream in self._all_streams():
            stream.start()

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, send_index: int | None = None
    ) -> None:
        self.counter.add(num_messages_sent=len(readers), sent_bytes=data.nbytes * len(readers))
        all_sent = done if len(readers) == 1 else after_all(len(readers), done)
        for reader in readers:
            self._outboxes[reader].send(message, data, all_sent)

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
        self._inboxes[source].post(message, PostedReceive(num_bytes, landing, done, time.monotonic()))

    def receive_any(self, candidates: Candidates, claim: Claim, num_bytes: int, landing: Landing, done: Done) -> None:
        receive = PostedReceive(num_bytes, landing, done, time.monotonic())
        with self._lock:
            self._from_any.append(_ReceiveFromAny(candidates, claim, receive))
        self._match_any()

    def finished(self, number: int) -> None:
        """Do nothing: nothing is kept for a finished call."""

    def close(self, reason: str | None) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if reason is None:
            deadline_s = time.monotonic() + _LEAVE_TIMEOUT_S
            for stream in self._all_streams():
                stream.send(Frame(FrameKind.LEAVE, NOBODY, 0))
            for stream in self._all_streams():
                stream.drain(deadline_s)
                stream.end_sending()
            return
        body = reason.encode()[:MAX_REASON_BYTES]
        last_frame = Frame(FrameKind.LEAVE, NOBODY, len(body), 0, len(body))
        for peer_streams in self._streams.values():
            # One stream that is not in the middle of a message is enough. A peer that hears no reason would take this
            # rank for the lost member.
            any(stream.send_now(last_frame, body) for stream in peer_streams)
        for stream in self._all_streams():
            stream.cut()

    def body_of(self, peer: int, frame: Frame) -> memoryview:
        if frame.kind is FrameKind.EAGER:
            return self._inboxes[peer].body_of_eager(frame)
        if frame.kind is FrameKind.PIECE:
            return self._inboxes[peer].body_of_piece(frame)
        return memoryview(bytearray(frame.num_bytes))  # the reason of a LEAVE, which is short

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        match frame.kind:
            case FrameKind.EAGER:
                self._inboxes[peer].on_eager(frame, body)
            case FrameKind.PIECE:
                self._inboxes[peer].on_piece(frame)
            case FrameKind.READY:
                self._outboxes[peer].on_ready(frame.message, frame.total_bytes)
            case FrameKind.OFFER:
                self._inboxes[peer].on_offer(frame.message, frame.total_bytes)
            case FrameKind.CREDIT:
                self._outboxes[peer].on_credit(frame.total_bytes)
            case FrameKind.LEAVE:
                if body.nbytes:
                    reason = bytes(body).decode(errors="replace")
                    if not self._is_closed:
                        self.on_failure(PeerLost(f"rank {peer} gave up: {reason}", cause=reason.partition(":")[0]))
                else:
                    self._on_stream_end(peer, PeerLost(f"rank {peer} has left the group"))
            case FrameKind.HEARTBEAT:
                pass  # its arrival alone shows that the peer is alive

    def on_broken(self, peer: int, why: str) -> None:
        self._part_from(peer, PeerLost(f"rank {peer} was lost: {why}", rank=peer))
        self._cut(peer)

    def on_closed(self, peer: int, has_left: bool, why: str) -> None:
        if not has_left and not self._is_closed:
            self._on_stream_end(peer, PeerLost(f"rank {peer} was lost: {why}", rank=peer))
            if peer in self._gone:
                return
            timer = threading.Timer(GRACE_S, self._cut, (peer,))
            timer.daemon = True
            timer.start()

    def _all_streams(self) -> list[Carrier]:
        return [stream for peer_streams in self._streams.values() for stream in peer_streams]

    def _on_stream_end(self, peer: int, error: PeerLost) -> None:
        """Note that one stream has ended; what the peer sent on its other streams is still to be read."""
        with self._lock:
            self._num_ended[peer] += 1
            is_last = self._num_ended[peer] == len(self._streams[peer])
        if is_last:
            self._part_from(peer, error)

    def _cut(self, peer: int) -> None:
        for stream in self._streams[peer]:
            stream.cut()

    def _part_from(self, peer: int, error: PeerLost) -> None:
        """Fail every message from or to this peer; the rest goes on."""
        with self._lock:
            if peer in self._gone:
                return
            self._gone.add(peer)
            failed = [*self._inboxes[peer].close(str(error)), *self._outboxes[peer].close(str(error))]
            if len(self._gone) == len(self._streams):
                failed += [waiting.receive.done for waiting in self._from_any]
                self._from_any.clear()
        for done in failed:
            done(error)

    def _match_any(self) -> None:
        """Give messages that have arrived or are offered to receives from any rank."""
        with self._lock:
            receives = list(self._from_any)
        for waiting in receives:
            claimed = self._claim_any(waiting)
            if claimed is not None:
                source, message = claimed
                self._inboxes[source].post(message, waiting.receive)

    def _claim_any(self, waiting: _ReceiveFromAny) -> tuple[int, Message] | None:
        """Return the message that this receive from any rank gets, if there is one, so that no other receive does."""
        with self._lock:
            for source, message in waiting.candidates() if waiting in self._from_any else []:
                if self._inboxes[source].has(message) and waiting.claim(source, message):
                    self._from_any.remove(waiting)
                    return source, message
        return None


def _send_pieces(streams: Sequence[Carrier], message: Message, data: memoryview, done: Done) -> None:
    """Send a message whose receive is posted, over as many streams as its size deserves."""
    size = piece_bytes(data.nbytes, len(streams))
    num_streams = num_stripes(data.nbytes, len(streams))
    offsets = range(0, max(1, data.nbytes), size)
    all_sent = after_all(len(offsets), done)
    for number, offset in enumerate(offsets):
        body = data[offset : offset + size]
        frame = Frame(FrameKind.PIECE, message, data.nbytes, offset, body.nbytes)
        streams[number % num_streams].send(frame, body, all_sent)
