"""One socket between two ranks: frames out, in order and without copies; frames in, straight to where they belong."""

import array
import contextlib
import fcntl
import logging
import socket
import termios
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from zooid.comm.tcp.checksums import NOT_CHECKED, RunningChecksum, checksum
from zooid.comm.tcp.frames import HEADER_BYTES, Frame, FrameKind
from zooid.comm.tcp.loop import Loop
from zooid.comm.tcp.sockets import is_loopback
from zooid.comm.transport_protocol import Done
from zooid.core.errors import CommError, DamagedMessage, PeerLost
from zooid.schedule.stream_rules import PIECE_BYTES

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 4 * 2**20
"""What one stream may read before the others get their turn."""
_MAX_BUFFERS = 32
_SMALL_BYTES = 2**13
"""Bodies up to this size always have a checksum: it takes no time that could be measured."""


class Receiver(Protocol):
    """Who takes what arrives on the streams of one peer."""

    def body_of(self, peer: int, frame: Frame) -> memoryview:
        """Where the body of this frame goes; CommError where it must not come."""

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        """The frame is complete; CommError where it must not come."""

    def on_broken(self, peer: int, why: str) -> None:
        """What arrived from this peer is damaged or against the protocol: nothing more can be read from it."""

    def on_closed(self, peer: int, has_left: bool, why: str) -> None:
        """Nothing comes from this stream any more."""


class _Incoming:
    """A frame whose body is being read; its checksum is computed along the way."""

    def __init__(self, frame: Frame, body: memoryview, num_bytes: int) -> None:
        self.frame = frame
        self.body = body
        self._num_bytes = num_bytes
        self._running = None if frame.body_check == NOT_CHECKED else RunningChecksum(body)
        self._is_unwanted = False

    @property
    def missing(self) -> memoryview:
        return self.body[self._num_bytes :]

    def grow(self, num_bytes: int) -> bool:
        """Note that `num_bytes` more have arrived. Returns True if the body is complete."""
        self._num_bytes += num_bytes
        if self._running is not None:
            self._running.advance(self._num_bytes)
        return self._num_bytes == self.body.nbytes

    def check(self) -> int:
        if self._is_unwanted:
            return self.frame.body_check
        return NOT_CHECKED if self._running is None else self._running.finish()

    def divert(self) -> None:
        """Write the rest elsewhere: the memory that it was for may be used again."""
        self.body = memoryview(bytearray(self.body.nbytes))
        self._running = None
        self._is_unwanted = True


class Stream:
    """One of the streams of a pair; `peer` is the rank at its other end.

    Every header has a checksum, and so has every body that leaves this machine. On a loopback connection large bodies
    have none: they never leave the machine's memory, and a checksum would take a fifth of the time.
    """

    def __init__(self, sock: socket.socket, peer: int, receiver: Receiver, loop: Loop, *, read_ahead: int) -> None:
        sock.setblocking(False)
        self._checks_all = not is_loopback(sock)
        self.peer = peer
        self._socket = sock
        self._receiver = receiver
        self._loop = loop
        self._lock = threading.Lock()
        self._out: deque[tuple[memoryview, Done | None]] = deque()
        """Headers and bodies, as the socket takes them."""
        self._pieces: deque[tuple[Frame, memoryview, Done | None]] = deque()
        """Frames that follow on those; the checksum of a large one is computed when it is nearly its turn."""
        self._is_watching = False
        """True while waiting for the socket to take more."""
        self._is_closed = False
        self._has_left = False
        """True once the peer has said that it is done."""
        self._inbox = bytearray(HEADER_BYTES + read_ahead)
        self._have = 0
        self._incoming: _Incoming | None = None
        """The frame whose body is being read, where it was not in the inbox as a whole."""
        self._reading = threading.RLock()
        """Held while bytes are written to where they belong."""
        self.heard_s = time.monotonic()
        """When something last arrived."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def start(self) -> None:
        self._loop.add(self)

    def send(self, frame: Frame, body: memoryview | None = None, done: Done | None = None) -> None:
        """Queue a frame, and send what the socket takes at once; `done` comes when the body has left this process."""
        data = memoryview(b"") if body is None else body
        header = None if frame.kind is FrameKind.PIECE else self._header(frame, data)
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                if header is None or self._pieces:
                    self._pieces.append((frame, data, done))
                else:
                    self._queue(header, data, done)
            finished = [] if is_closed or self._is_watching else self._flush()
        if is_closed and done is not None:
            done(PeerLost(f"rank {self.peer} cannot be reached any more"))
        for each in finished:
            each(None)

    def send_now(self, frame: Frame, body: bytes) -> bool:
        """Send a last frame if nothing is in its way, and say whether it went; nobody is waited for."""
        if not self._lock.acquire(timeout=0.05):
            return False
        try:
            if self._out or self._pieces or self._is_closed:
                return False
            message = bytes(self._header(frame, memoryview(body))) + body
            return self._socket.send(message) == len(message)
        except OSError:
            return False
        finally:
            self._lock.release()

    def drain(self, deadline_s: float) -> bool:
        """Wait until the peer's machine has acknowledged everything."""
        while time.monotonic() < deadline_s:
            with self._lock:
                if self._is_closed:
                    return True
                unacknowledged = array.array("i", [0])
                fcntl.ioctl(self._socket, termios.TIOCOUTQ, unacknowledged)
                if not self._out and not self._pieces and unacknowledged[0] == 0:
                    return True
            time.sleep(0.002)
        return False

    def drain_pieces(self, channel: int, deadline_s: float) -> bool:
        """Wait until all pieces of this channel have their turn."""
        while time.monotonic() < deadline_s:
            with self._lock:
                if self._is_closed or all(frame.channel != channel for frame, *_ in self._pieces):
                    return True
            time.sleep(0.002)
        return False

    def end_sending(self) -> None:
        with self._lock:
            if not self._is_closed:
                _shutdown(self._socket, socket.SHUT_WR)

    def forget(self, channel: int) -> None:
        """Leave the memory of this channel's messages alone from now on; the stream serves other channels as before."""
        with self._lock:
            self._pieces = deque(
                piece for piece in self._pieces if piece[0].channel != channel or piece[0].kind is not FrameKind.PIECE
            )
            self._out = deque((memoryview(bytes(data)), done) for data, done in self._out)  # they have begun
        with self._reading:
            if self._incoming is not None and self._incoming.frame.channel == channel:
                self._incoming.divert()

    def cut(self) -> None:
        """End it at once, and tell all who wait for their messages to leave; the loop closes the socket."""
        with self._lock:
            unsent = self._take_unsent()
            if not self._is_closed:
                _shutdown(self._socket, socket.SHUT_RDWR)
        _tell(unsent, PeerLost(f"rank {self.peer} cannot be reached any more"))

    def on_events(self, readable: bool, writable: bool) -> None:
        try:
            if writable:
                with self._lock:
                    finished = self._flush()
                for each in finished:
                    each(None)
            if readable:
                self.heard_s = time.monotonic()
                self._read()
        except OSError as error:
            self._close(error.strerror or str(error))
        except CommError as error:
            logger.warning("rank %d is cut off: %s", self.peer, error)
            self._receiver.on_broken(self.peer, str(error))
            self._close(str(error))

    def abandon(self, error: BaseException) -> None:
        why = f"what it sent could not be handled ({type(error).__name__}: {error})"
        try:
            self._receiver.on_broken(self.peer, why)
        finally:
            self._close(why)

    def _take_unsent(self) -> list[Done]:
        """Forget what has not left; who waits for it. The lock is held."""
        unsent = [done for _, done in self._out if done is not None]
        unsent += [done for *_, done in self._pieces if done is not None]
        self._out.clear()
        self._pieces.clear()
        return unsent

    def _header(self, frame: Frame, body: memoryview) -> memoryview:
        is_checked = body.nbytes > 0 and (self._checks_all or body.nbytes <= _SMALL_BYTES)
        return memoryview(frame.pack(checksum(body) if is_checked else NOT_CHECKED))

    def _queue(self, header: memoryview, body: memoryview, done: Done | None) -> None:
        self._out.append((header, None if body.nbytes else done))
        if body.nbytes:
            self._out.append((body, done))

    def _flush(self) -> list[Done]:
        """Send what the socket takes; the callbacks of what has left. The lock is held."""
        finished: list[Done] = []
        try:
            while self._out or self._refill():
                buffers = [self._out[at][0] for at in range(min(len(self._out), _MAX_BUFFERS))]
                sent = self._socket.sendmsg(buffers)
                while self._out and sent >= self._out[0][0].nbytes:
                    data, done = self._out.popleft()
                    sent -= data.nbytes
                    if done is not None:
                        finished.append(done)
                if sent:
                    data, done = self._out[0]
                    self._out[0] = (data[sent:], done)
        except BlockingIOError:
            self._refill()  # while the socket has something to send
        except OSError:
            return finished  # reading says what happened, and closes the stream
        self._watch(bool(self._out))
        return finished

    def _refill(self) -> bool:
        """Get pieces ready where little of what is ready is left; whether anything is ready then. The lock is held."""
        if not self._pieces:
            return bool(self._out)
        ready_bytes = sum(self._out[at][0].nbytes for at in range(min(len(self._out), _MAX_BUFFERS)))
        while self._pieces and ready_bytes < PIECE_BYTES // 2:
            frame, body, done = self._pieces.popleft()
            self._queue(self._header(frame, body), body, done)
            ready_bytes += HEADER_BYTES + body.nbytes
        return True

    def _watch(self, wanted: bool) -> None:
        if wanted != self._is_watching and not self._is_closed:
            self._is_watching = wanted
            self._loop.watch(self, writing=wanted)

    def _read(self) -> None:
        budget = _READ_AT_ONCE
        while budget > 0 and not self._is_closed:
            incoming = self._incoming
            try:
                with self._reading:
                    place = memoryview(self._inbox)[self._have :] if incoming is None else incoming.missing
                    count = self._socket.recv_into(place)
            except BlockingIOError:
                return
            if count == 0:
                self._close("it closed the connection")
                return
            budget -= count
            if incoming is not None:
                if incoming.grow(count):
                    self._incoming = None
                    self._deliver(incoming.frame, incoming.body, incoming.check())
            else:
                self._have += count
                self._parse()
                if self._incoming is None and count < place.nbytes:
                    return  # that was all; the loop tells of more

    def _parse(self) -> None:
        """Take frames out of the inbox; a body that is not all there yet is read straight to its place."""
        inbox = memoryview(self._inbox)
        at = 0
        while self._incoming is None and self._have - at >= HEADER_BYTES:
            frame = Frame.unpack(inbox[at : at + HEADER_BYTES])
            at += HEADER_BYTES
            here = min(frame.num_bytes, self._have - at)
            with self._reading:
                body = self._receiver.body_of(self.peer, frame) if frame.num_bytes else inbox[0:0]
                body[:here] = inbox[at : at + here]
                if here < frame.num_bytes:
                    self._incoming = _Incoming(frame, body, here)
            at += here
            if here == frame.num_bytes:
                self._deliver(frame, body, NOT_CHECKED if frame.body_check == NOT_CHECKED else checksum(body))
        rest = self._have - at
        self._inbox[:rest] = self._inbox[at : self._have]
        self._have = rest

    def _deliver(self, frame: Frame, body: memoryview, check: int) -> None:
        if check != frame.body_check:
            raise DamagedMessage(
                f"{frame.num_bytes} bytes of a message were altered on their way: their checksum is wrong"
            )
        if frame.kind is FrameKind.LEAVE and frame.channel == 0:
            self._has_left = True
        self._receiver.on_frame(self.peer, frame, body)

    def _close(self, why: str) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            unsent = self._take_unsent()
            self._incoming = None
            self._loop.remove(self)
            self._socket.close()
        _tell(unsent, PeerLost(f"rank {self.peer} was lost: {why}"))
        self._receiver.on_closed(self.peer, self._has_left, why)


def _tell(callbacks: Iterable[Done], error: BaseException) -> None:
    """Tell everyone, even if one of them fails."""
    for done in callbacks:
        try:
            done(error)
        except Exception:
            logger.exception("the end of a message could not be told")


def _shutdown(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # it is not connected any more
        sock.shutdown(how)
