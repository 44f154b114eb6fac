"""The TCP transport of one group: matches what arrives with who waits for it.

Small messages are sent at once, and kept by the reader until they are wanted, up to a limit. A large one is sent when
its reader has said that it has a place for it, which it says when it begins the call: so its bytes go from the sender's
tensor to the reader's without a copy in between, and a rank that runs ahead cannot fill the memory of one that is
behind.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zooid.comm.statistics import Counter
from zooid.comm.tcp.frames import NOBODY, Frame, FrameKind
from zooid.comm.tcp.stream import Stream
from zooid.comm.transport import Done, Landing, Message, wrong_size
from zooid.core.errors import CommError, PeerLost
from zooid.schedule.streams import EAGER_BYTES, num_stripes

_MAX_REASON_BYTES = 2**14
_MAX_EARLY_BYTES = 16 * 2**20
"""Of small messages from one peer that nobody wants yet: it is not listened to until half of them are taken, or until
something else is awaited from it."""
_LAST_WORDS_S = 0.3
"""When one stream of a peer breaks, the others have this long to end by themselves."""
_LEAVE_TIMEOUT_S = 10.0

Place = tuple[int, Message]
"""The rank at the other end, and the message."""


@dataclass(eq=False)
class _Wanted:
    num_bytes: int
    landing: Landing
    done: Done
    since_s: float
    memory: memoryview | None = None
    num_missing: int = 0


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
        self._streams: dict[int, list[Stream]] = {}
        self._lock = threading.Lock()
        self._wanted: dict[Place, _Wanted] = {}
        self._early: dict[Place, memoryview] = {}
        """Small messages that nobody wanted yet."""
        self._early_bytes: defaultdict[int, int] = defaultdict(int)
        self._from_any: list[_WantedFromAny] = []
        self._offers: dict[Place, int] = {}
        self._ready: set[Place] = set()
        """Large messages that their readers have a place for, and that this rank has not sent yet."""
        self._unsent: dict[Place, tuple[memoryview, Done]] = {}
        """Large messages whose readers have no place yet."""
        self._gone: dict[int, str] = {}
        """Peers that have left or were lost, and how."""
        self._num_ended: defaultdict[int, int] = defaultdict(int)
        """Of a peer's streams: those on which nothing more comes."""
        self._is_closed = False

    @property
    def trouble(self) -> None:
        """A broken connection fails at once, so nothing lingers."""

    def start(self, streams: dict[int, list[Stream]]) -> None:
        self._streams = streams
        for stream in [stream for of_peer in streams.values() for stream in of_peer]:
            stream.start()

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, place: int | None = None
    ) -> None:
        self._counter.add(num_messages_sent=len(readers), sent_bytes=data.nbytes * len(readers))
        all_sent = done if len(readers) == 1 else _after(len(readers), done)
        for reader in readers:
            if data.nbytes <= EAGER_BYTES:
                frame = Frame(FrameKind.DATA, message, data.nbytes, 0, data.nbytes)
                self._streams[reader][0].send(frame, data, all_sent)
                continue
            with self._lock:
                gone = self._gone.get(reader)
                is_ready = (reader, message) in self._ready
                if is_ready:
                    self._ready.remove((reader, message))
                elif gone is None:
                    self._unsent[reader, message] = (data, all_sent)
            if gone is not None:
                all_sent(PeerLost(gone))
            elif is_ready:
                self._send_large(reader, message, data, all_sent)
            else:
                self._streams[reader][0].send(Frame(FrameKind.OFFER, message, data.nbytes, 0, 0))
                self._streams[reader][0].read(True)  # its readiness may stand behind messages that nobody wants yet

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
                stream.send(Frame(FrameKind.LEAVE, NOBODY, 0, 0, 0))
            for stream in streams:
                stream.drain(deadline_s)
                stream.end_sending()
            return
        body = reason.encode()[:_MAX_REASON_BYTES]
        last_words = Frame(FrameKind.LEAVE, NOBODY, len(body), 0, len(body))
        for of_peer in self._streams.values():
            # on one that is not in the middle of a message: who hears nothing takes this rank for the one that was lost
            any(stream.send_now(last_words, body) for stream in of_peer)
        for stream in streams:
            stream.cut()

    def body_of(self, peer: int, frame: Frame) -> memoryview:
        if frame.kind is not FrameKind.DATA:
            return memoryview(bytearray(frame.num_bytes))
        with self._lock:
            wanted = self._wanted.get((peer, frame.message))
        if wanted is None:
            return memoryview(bytearray(frame.num_bytes))
        if frame.total_bytes != wanted.num_bytes:
            return memoryview(bytearray(frame.num_bytes))  # `on_frame` reports it
        if wanted.memory is None:
            try:
                wanted.memory = wanted.landing.memory()
            except CommError:  # the call has ended meanwhile
                wanted.memory = memoryview(bytearray(wanted.num_bytes))
            wanted.num_missing = wanted.num_bytes
        return wanted.memory[frame.offset : frame.offset + frame.num_bytes]

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        match frame.kind:
            case FrameKind.DATA:
                self._on_data(peer, frame, body)
            case FrameKind.READY:
                self._on_ready((peer, frame.message))
            case FrameKind.OFFER:
                self._on_offer((peer, frame.message), frame.total_bytes)
            case FrameKind.LEAVE:
                if body.nbytes:
                    self._fail(PeerLost(f"rank {peer} gave up: {bytes(body).decode(errors='replace')}"))
                else:
                    self._on_stream_end(peer, PeerLost(f"rank {peer} has left the group"))

    def on_closed(self, peer: int, has_left: bool, why: str) -> None:
        if not has_left and not self._is_closed:
            self._on_stream_end(peer, PeerLost(f"rank {peer} was lost: {why}"))
            later = threading.Timer(_LAST_WORDS_S, self._cut, (peer,))
            later.daemon = True
            later.start()

    def _on_data(self, peer: int, frame: Frame, body: memoryview) -> None:
        place = (peer, frame.message)
        with self._lock:
            wanted = self._wanted.get(place)
            if wanted is None:
                self._early[place] = body
                self._early_bytes[peer] += body.nbytes
                is_full = self._early_bytes[peer] > _MAX_EARLY_BYTES and not self._waits_for(peer)
            else:
                wanted.num_missing -= frame.num_bytes
                if wanted.num_missing > 0:
                    return
                self._wanted.pop(place)
        if wanted is None:
            if is_full:
                self._streams[peer][0].read(False)
            self._match_any()
        elif frame.total_bytes != wanted.num_bytes:
            wanted.done(wrong_size(frame.total_bytes, wanted.num_bytes, peer))
        elif wanted.memory is None:  # it was wanted only after its first bytes were here, or it has none
            self._take_early(peer, wanted, body)
        else:
            self._arrived(wanted)

    def _on_ready(self, place: Place) -> None:
        with self._lock:
            unsent = self._unsent.pop(place, None)
            if unsent is None:
                self._ready.add(place)
        if unsent is not None:
            self._send_large(*place, *unsent)

    def _on_offer(self, place: Place, num_bytes: int) -> None:
        with self._lock:
            wanted = self._wanted.get(place)
            if wanted is None:
                self._offers[place] = num_bytes
        if wanted is None:
            self._match_any()
        elif wanted.num_bytes != num_bytes:
            wanted.done(wrong_size(num_bytes, wanted.num_bytes, place[0]))

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
            self._gone[peer] = str(error)
            ended = [self._wanted.pop(place).done for place in list(self._wanted) if place[0] == peer]
            ended += [self._unsent.pop(place)[1] for place in list(self._unsent) if place[0] == peer]
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
            if data is not None:
                self._early_bytes[source] -= data.nbytes
            has_room = data is None or self._early_bytes[source] <= _MAX_EARLY_BYTES // 2
            offered = self._offers.pop(place, None)
            if data is None and gone is None:
                self._wanted[place] = wanted
        if has_room and gone is None:
            self._streams[source][0].read(True)
        if data is not None:
            self._take_early(source, wanted, data)
        elif gone is not None:
            wanted.done(PeerLost(gone))
        elif offered is not None and offered != wanted.num_bytes:
            wanted.done(wrong_size(offered, wanted.num_bytes, source))
        elif wanted.num_bytes > EAGER_BYTES:
            self._streams[source][0].send(Frame(FrameKind.READY, message, wanted.num_bytes, 0, 0))

    def _take_early(self, source: int, wanted: _Wanted, data: memoryview) -> None:
        if data.nbytes != wanted.num_bytes:
            wanted.done(wrong_size(data.nbytes, wanted.num_bytes, source))
            return
        wanted.landing.memory()[:] = data
        self._arrived(wanted)

    def _arrived(self, wanted: _Wanted) -> None:
        waited_s = time.monotonic() - wanted.since_s
        self._counter.add(num_messages_received=1, received_bytes=wanted.num_bytes, waited_s=waited_s)
        wanted.done(None)

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

    def _waits_for(self, peer: int) -> bool:
        """Whether something is to come from a peer before this rank goes on. The lock is held."""
        return bool(self._from_any) or any(place[0] == peer for place in (*self._wanted, *self._unsent))

    def _send_large(self, reader: int, message: Message, data: memoryview, done: Done) -> None:
        streams = self._streams[reader][1:]
        count = num_stripes(data.nbytes, len(streams))
        size = -(-data.nbytes // count)
        all_sent = _after(count, done)
        for stripe, stream in enumerate(streams[:count]):
            body = data[stripe * size : (stripe + 1) * size]
            frame = Frame(FrameKind.DATA, message, data.nbytes, stripe * size, body.nbytes)
            stream.send(frame, body, all_sent)

    def _fail(self, error: BaseException) -> None:
        if not self._is_closed:
            self.on_failure(error)


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
