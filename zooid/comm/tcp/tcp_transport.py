"""The TCP transport of one group: matches what arrives with who waits for it.

Small messages are sent at once, as long as the sender has credit, and kept by the reader until they are wanted. A large
one is sent when its reader has said that it has a place for it, which it says when it begins the call: so its bytes go
from the sender's tensor to the reader's without a copy in between. Memory is taken only for what is wanted, or within
the credit: a rank that runs ahead, or one that is broken, cannot fill the memory of another.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from zooid.comm.tcp.frames import MAX_REASON_BYTES, NOBODY, Frame, FrameKind
from zooid.comm.tcp.outbox import CREDIT_BYTES, MAX_WAITING, Outbox, cost_bytes
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import Done, Landing, Message, wrong_size
from zooid.core.errors import CommError, PeerLost
from zooid.schedule.stream_rules import EAGER_BYTES, num_stripes, piece_bytes

_RETURN_BYTES = CREDIT_BYTES // 4
"""Credit is given back when so much of it has come together."""
LAST_WORDS_S = 0.3
"""When one stream of a peer breaks, the others have this long to end by themselves."""
_LEAVE_TIMEOUT_S = 10.0

Place = tuple[int, Message]
"""The rank at the other end, and the message."""


class Carrier(Protocol):
    """One of the streams to a peer: all of it, or the part that belongs to one group."""

    def start(self) -> None:
        """Begin to read."""

    def send(self, frame: Frame, body: memoryview | None = None, done: Done | None = None) -> None:
        """Queue a frame; `done` comes when the body has left this process."""

    def send_now(self, frame: Frame, body: bytes) -> bool:
        """Send a last frame if nothing is in its way, and say whether it went."""

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything that was sent is sure to be delivered."""

    def end_sending(self) -> None:
        """Nothing more will be sent."""

    def cut(self) -> None:
        """End it at once."""


@dataclass(eq=False)
class _Wanted:
    num_bytes: int
    landing: Landing
    done: Done
    since_s: float
    memory: memoryview | None = None
    offsets: set[int] = field(default_factory=set)
    """Where the pieces begin that have come, or are coming."""
    num_arrived: int = 0
    """Bytes of pieces that are complete."""
    is_ready: bool = False
    """True once the sender was told that there is a place."""
    is_ahead: bool = False
    """True where it was told before it had made an offer."""


@dataclass(eq=False)
class _WantedFromAny:
    candidates: Callable[[], list[Place]]
    claim: Callable[[int, Message], bool]
    wanted: _Wanted


class TcpTransport:
    """All streams of one rank in one group; streams[rank][0] carries what is small, the others what is large."""

    def __init__(self, counter: Counter) -> None:
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._counter = counter
        self._streams: Mapping[int, Sequence[Carrier]] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self._wanted: dict[Place, _Wanted] = {}
        self._early: dict[Place, memoryview] = {}
        """Small messages that nobody wanted yet."""
        self._credit_used: defaultdict[int, int] = defaultdict(int)
        """Credit that each peer has used and not got back, in bytes."""
        self._credit_owed: defaultdict[int, int] = defaultdict(int)
        """The part of it that belongs to messages which were taken."""
        self._from_any: list[_WantedFromAny] = []
        self._offers: dict[Place, int] = {}
        self._num_offers: defaultdict[int, int] = defaultdict(int)
        self._num_ahead: defaultdict[int, int] = defaultdict(int)
        self._unready: defaultdict[int, deque[Message]] = defaultdict(deque)
        """Wanted messages whose senders are not told yet, for they were told of too many in advance."""
        self._gone: dict[int, str] = {}
        """Peers that have left or were lost, and how."""
        self._num_ended: defaultdict[int, int] = defaultdict(int)
        """How many of a peer's streams have ended."""
        self._is_closed = False
        self.lost: set[int] = set()
        """Ranks that have left, or whose connections broke by themselves, while this rank was in the group."""

    @property
    def trouble(self) -> None:
        """A broken connection fails at once, so nothing lingers."""

    def start(self, streams: Mapping[int, Sequence[Carrier]]) -> None:
        self._streams = streams
        self._outboxes = {
            peer: Outbox(peer, of_peer[0].send, partial(self._send_pieces, of_peer[1:]))
            for peer, of_peer in streams.items()
        }
        for stream in [stream for of_peer in streams.values() for stream in of_peer]:
            stream.start()

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, place: int | None = None
    ) -> None:
        self._counter.add(num_messages_sent=len(readers), sent_bytes=data.nbytes * len(readers))
        all_sent = done if len(readers) == 1 else _after(len(readers), done)
        for reader in readers:
            self._outboxes[reader].send(message, data, all_sent)

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
        self._want(source, message, _Wanted(num_bytes, landing, done, time.monotonic()))

    def receive_any(
        self,
        candidates: Callable[[], list[Place]],
        claim: Callable[[int, Message], bool],
        num_bytes: int,
        landing: Landing,
        done: Done,
    ) -> None:
        waiting = _WantedFromAny(candidates, claim, _Wanted(num_bytes, landing, done, time.monotonic()))
        with self._lock:
            self._from_any.append(waiting)
        self._match_any()

    def finished(self, number: int) -> None:
        """Nothing is kept for a call that is over."""

    def close(self, reason: str | None) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        streams = [stream for of_peer in self._streams.values() for stream in of_peer]
        if reason is None:
            deadline_s = time.monotonic() + _LEAVE_TIMEOUT_S
            for stream in streams:
                stream.send(Frame(FrameKind.LEAVE, NOBODY, 0))
            for stream in streams:
                stream.drain(deadline_s)
                stream.end_sending()
            return
        body = reason.encode()[:MAX_REASON_BYTES]
        last_words = Frame(FrameKind.LEAVE, NOBODY, len(body), 0, len(body))
        for of_peer in self._streams.values():
            # on one that is not in the middle of a message: who hears nothing takes this rank for the one that was lost
            any(stream.send_now(last_words, body) for stream in of_peer)
        for stream in streams:
            stream.cut()

    def body_of(self, peer: int, frame: Frame) -> memoryview:
        if frame.kind is FrameKind.EAGER:
            return self._body_of_eager(peer, frame)
        if frame.kind is FrameKind.PIECE:
            return self._body_of_piece(peer, frame)
        return memoryview(bytearray(frame.num_bytes))  # why it leaves, which is short

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        match frame.kind:
            case FrameKind.EAGER:
                if frame.num_bytes == 0:
                    self._body_of_eager(peer, frame)
                self._on_eager(peer, frame, body)
            case FrameKind.PIECE:
                if frame.num_bytes == 0:
                    self._body_of_piece(peer, frame)
                self._on_piece(peer, frame)
            case FrameKind.READY:
                self._outboxes[peer].on_ready(frame.message, frame.total_bytes)
            case FrameKind.OFFER:
                self._on_offer((peer, frame.message), frame.total_bytes)
            case FrameKind.CREDIT:
                self._outboxes[peer].on_credit(frame.total_bytes)
            case FrameKind.LEAVE:
                if body.nbytes:
                    reason = bytes(body).decode(errors="replace")
                    self._fail(PeerLost(f"rank {peer} gave up: {reason}", cause=reason.partition(":")[0]))
                else:
                    self.lost.add(peer)
                    self._on_stream_end(peer, PeerLost(f"rank {peer} has left the group"))
            case FrameKind.HEARTBEAT:
                pass  # it lives

    def on_broken(self, peer: int, why: str) -> None:
        self.lost.add(peer)
        self._part_from(peer, PeerLost(f"rank {peer} was lost: {why}", rank=peer))
        self._cut(peer)

    def on_closed(self, peer: int, has_left: bool, why: str) -> None:
        if not has_left and not self._is_closed:
            self.lost.add(peer)
            self._on_stream_end(peer, PeerLost(f"rank {peer} was lost: {why}", rank=peer))
            if peer in self._gone:
                return
            later = threading.Timer(LAST_WORDS_S, self._cut, (peer,))
            later.daemon = True
            later.start()

    def _body_of_eager(self, peer: int, frame: Frame) -> memoryview:
        place = (peer, frame.message)
        with self._lock:
            used_bytes = self._credit_used[peer] = self._credit_used[peer] + cost_bytes(frame.num_bytes)
            if used_bytes > CREDIT_BYTES:
                raise CommError(f"it sent more than the {CREDIT_BYTES} bytes of small messages that it may send ahead")
            wanted = self._wanted.get(place)
            if place in self._early if wanted is None else wanted.is_ready and wanted.num_bytes <= EAGER_BYTES:
                raise CommError("it sent a message twice")
        if wanted is None or wanted.num_bytes != frame.total_bytes:  # `_on_eager` reports the other size
            return memoryview(bytearray(frame.num_bytes))
        return _memory(wanted)

    def _body_of_piece(self, peer: int, frame: Frame) -> memoryview:
        with self._lock:
            wanted = self._wanted.get((peer, frame.message))
            if wanted is None or not wanted.is_ready:
                raise CommError(f"it sent {frame.num_bytes} bytes of a message that nobody asked for")
            is_wrong_size = frame.total_bytes != wanted.num_bytes
            size = piece_bytes(frame.total_bytes, len(self._streams[peer]) - 1)
            is_whole = frame.offset % size == 0 and frame.num_bytes == min(size, frame.total_bytes - frame.offset)
            if not is_wrong_size:
                if not is_whole or frame.offset in wanted.offsets:
                    raise CommError(f"it sent {frame.num_bytes} bytes at {frame.offset} that are no piece, or twice")
                wanted.offsets.add(frame.offset)
        if is_wrong_size:
            error = wrong_size(frame.total_bytes, wanted.num_bytes, peer)
            wanted.done(error)
            raise error
        return _memory(wanted)[frame.offset : frame.offset + frame.num_bytes]

    def _on_eager(self, peer: int, frame: Frame, body: memoryview) -> None:
        place = (peer, frame.message)
        with self._lock:
            wanted = self._wanted.pop(place, None)
            if wanted is None:
                self._early[place] = body
            else:
                returned_bytes = self._take_credit(peer, frame.num_bytes)
        if wanted is None:
            self._match_any()
            return
        if frame.total_bytes != wanted.num_bytes:
            wanted.done(wrong_size(frame.total_bytes, wanted.num_bytes, peer))
        elif wanted.memory is None:  # it was wanted only after its first bytes were here
            self._take_early(peer, wanted, body)
        else:
            self._arrived(wanted)
        self._give_back(peer, returned_bytes)

    def _on_piece(self, peer: int, frame: Frame) -> None:
        with self._lock:
            wanted = self._wanted.get((peer, frame.message))
            if wanted is None:  # the peer was parted from meanwhile
                return
            wanted.num_arrived += frame.num_bytes
            if wanted.num_arrived < wanted.num_bytes:
                return
            self._wanted.pop((peer, frame.message))
            self._num_ahead[peer] -= wanted.is_ahead
            now_ready = self._next_ready(peer)
        for message, num_bytes in now_ready:
            self._streams[peer][0].send(Frame(FrameKind.READY, message, num_bytes))
        self._arrived(wanted)

    def _on_offer(self, place: Place, num_bytes: int) -> None:
        peer, message = place
        with self._lock:
            wanted = self._wanted.get(place)
            if wanted is None:
                if place in self._offers or place in self._early or self._num_offers[peer] >= MAX_WAITING:
                    raise CommError(f"it offers more than {MAX_WAITING} messages, or one of them twice")
                self._offers[place] = num_bytes
                self._num_offers[peer] += 1
            else:
                is_told = wanted.is_ready
                wanted.is_ready = True
        if wanted is None:
            self._match_any()
        elif wanted.num_bytes != num_bytes:
            wanted.done(wrong_size(num_bytes, wanted.num_bytes, peer))
        elif not is_told:
            self._streams[peer][0].send(Frame(FrameKind.READY, message, num_bytes))

    def _on_stream_end(self, peer: int, error: PeerLost) -> None:
        """Nothing more comes on one stream of a peer; what it sent on others before is still to be read."""
        with self._lock:
            self._num_ended[peer] += 1
            is_last = self._num_ended[peer] == len(self._streams[peer])
        if is_last:
            self._part_from(peer, error)

    def _cut(self, peer: int) -> None:
        for stream in self._streams[peer]:
            stream.cut()

    def _part_from(self, peer: int, error: PeerLost) -> None:
        """What was to come from a peer, or to go to it, will not; the rest goes on."""
        with self._lock:
            if peer in self._gone:
                return
            self._gone[peer] = str(error)
            ended = [self._wanted.pop(place).done for place in list(self._wanted) if place[0] == peer]
            ended += self._outboxes[peer].close(str(error))
            self._unready.pop(peer, None)
            if len(self._gone) == len(self._streams):
                ended += [waiting.wanted.done for waiting in self._from_any]
                self._from_any.clear()
        for done in ended:
            done(error)

    def _want(self, source: int, message: Message, wanted: _Wanted) -> None:
        place = (source, message)
        with self._lock:
            gone = self._gone.get(source)
            data = self._early.pop(place, None)
            offered = self._offers.pop(place, None)
            self._num_offers[source] -= offered is not None
            if data is not None:
                returned_bytes = self._take_credit(source, data.nbytes)
            elif gone is None:
                self._wanted[place] = wanted
                self._tell_ready(place, wanted, offered)
        if data is not None:
            self._take_early(source, wanted, data)
            self._give_back(source, returned_bytes)
        elif gone is not None:
            wanted.done(PeerLost(gone))
        elif offered is not None and offered != wanted.num_bytes:
            wanted.done(wrong_size(offered, wanted.num_bytes, source))
        elif wanted.is_ready:
            self._streams[source][0].send(Frame(FrameKind.READY, message, wanted.num_bytes))

    def _tell_ready(self, place: Place, wanted: _Wanted, offered: int | None) -> None:
        """Decide whether the sender is told now that there is a place. The lock is held."""
        source, message = place
        if offered is not None:
            wanted.is_ready = True
        elif wanted.num_bytes > EAGER_BYTES:
            if self._num_ahead[source] < MAX_WAITING:
                wanted.is_ready = wanted.is_ahead = True
                self._num_ahead[source] += 1
            else:
                self._unready[source].append(message)

    def _next_ready(self, peer: int) -> list[tuple[Message, int]]:
        """Wanted messages, with their sizes, whose sender may be told of them now. The lock is held."""
        ready = []
        waiting = self._unready[peer]
        while waiting and self._num_ahead[peer] < MAX_WAITING:
            message = waiting.popleft()
            wanted = self._wanted.get((peer, message))
            if wanted is not None and not wanted.is_ready:  # an offer may have come meanwhile
                wanted.is_ready = wanted.is_ahead = True
                self._num_ahead[peer] += 1
                ready.append((message, wanted.num_bytes))
        return ready

    def _take_early(self, source: int, wanted: _Wanted, data: memoryview) -> None:
        if data.nbytes != wanted.num_bytes:
            wanted.done(wrong_size(data.nbytes, wanted.num_bytes, source))
            return
        try:
            wanted.landing.memory()[:] = data
        except CommError as error:  # the call has ended meanwhile
            wanted.done(error)
            return
        self._arrived(wanted)

    def _arrived(self, wanted: _Wanted) -> None:
        waited_s = time.monotonic() - wanted.since_s
        self._counter.add(num_messages_received=1, received_bytes=wanted.num_bytes, waited_s=waited_s)
        wanted.done(None)

    def _take_credit(self, peer: int, num_bytes: int) -> int:
        """A small message was taken; how much credit its sender is to get back now. The lock is held."""
        self._credit_owed[peer] += cost_bytes(num_bytes)
        returned_bytes = self._credit_owed[peer]
        if returned_bytes < _RETURN_BYTES:
            return 0
        self._credit_owed[peer] = 0
        self._credit_used[peer] -= returned_bytes
        return returned_bytes

    def _give_back(self, peer: int, returned_bytes: int) -> None:
        if returned_bytes:
            self._streams[peer][0].send(Frame(FrameKind.CREDIT, NOBODY, returned_bytes))

    def _match_any(self) -> None:
        """Give what has come or is offered to whoever receives from any rank."""
        with self._lock:
            waiting = list(self._from_any)
        for each in waiting:
            place = self._claim_any(each)
            if place is not None:
                self._want(*place, each.wanted)

    def _claim_any(self, waiting: _WantedFromAny) -> Place | None:
        """The message that a receive from any rank gets, if one is here; no other receive gets it."""
        with self._lock:
            for place in waiting.candidates() if waiting in self._from_any else []:
                if (place in self._early or place in self._offers) and waiting.claim(*place):
                    self._from_any.remove(waiting)
                    return place
        return None

    def _send_pieces(self, streams: Sequence[Carrier], message: Message, data: memoryview, done: Done) -> None:
        """Send a message that its reader has a place for, over all streams that it is large enough for."""
        size = piece_bytes(data.nbytes, len(streams))
        num_streams = num_stripes(data.nbytes, len(streams))
        offsets = range(0, max(1, data.nbytes), size)
        all_sent = _after(len(offsets), done)
        for number, offset in enumerate(offsets):
            body = data[offset : offset + size]
            frame = Frame(FrameKind.PIECE, message, data.nbytes, offset, body.nbytes)
            streams[number % num_streams].send(frame, body, all_sent)

    def _fail(self, error: BaseException) -> None:
        if not self._is_closed:
            self.on_failure(error)


def _memory(wanted: _Wanted) -> memoryview:
    """Where a message lands; memory of its own where the call has ended meanwhile."""
    if wanted.memory is None:
        try:
            wanted.memory = wanted.landing.memory()
        except CommError:
            wanted.memory = memoryview(bytearray(wanted.num_bytes))
    return wanted.memory


def _after(count: int, done: Done) -> Done:
    """Calls `done` when it was called this often, or with an error."""
    lock = threading.Lock()
    left = [count]

    def one(error: BaseException | None) -> None:
        with lock:
            left[0] -= 1
            is_last = left[0] == 0
        if is_last or error is not None:
            done(error)

    return one
