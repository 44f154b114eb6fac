"""One socket between two ranks: frames are sent in order and without copies, and read into their destination."""

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
"""Number of bytes that one stream may read before the others get their turn."""
_MAX_BUFFERS = 32
_SMALL_BYTES = 2**13
"""Bodies up to this size always have a checksum, since it takes no measurable time."""


class Receiver(Protocol):
    """Takes the frames that arrive on the streams of one peer."""

    def body_of(self, peer: int, frame: Frame) -> memoryview:
        """Return the memory for the body of this frame; CommError where the frame breaks the protocol."""

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        """Take a complete frame; CommError where it breaks the protocol."""

    def on_broken(self, peer: int, why: str) -> None:
        """Note that the peer sent damaged or forbidden data, after which nothing more can be read from it."""

    def on_closed(self, peer: int, has_left: bool, why: str) -> None:
        """Note that this stream has ended."""


class _Incoming:
    """A frame whose body is being read; its checksum is computed meanwhile."""

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
        """Note that `num_bytes` more have arrived, and return whether the body is complete."""
        self._num_bytes += num_bytes
        if self._running is not None:
            self._running.advance(self._num_bytes)
        return self._num_bytes == self.body.nbytes

    def check(self) -> int:
        if self._is_unwanted:
            return self.frame.body_check
        return NOT_CHECKED if self._running is None else self._running.finish()

    def divert(self) -> None:
        """Write the rest to other memory, since the caller may use the original memory again."""
        self.body = memoryview(bytearray(self.body.nbytes))
        self._running = None
        self._is_unwanted = True


class Stream:
    """One stream to the rank `peer`.

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
        """Headers and bodies that the socket takes next."""
        self._pieces: deque[tuple[Frame, memoryview, Done | None]] = deque()
        """Frames that follow them; the checksum of a large one is computed shortly before its turn."""
        self._is_watching = False
        """Whether the loop polls the socket for writing."""
        self._is_closed = False
        self._has_left = False
        """Whether the peer has said that it leaves."""
        self._inbox = bytearray(HEADER_BYTES + read_ahead)
        self._have = 0
        self._incoming: _Incoming | None = None
        """The frame whose body is being read, where the inbox did not hold all of it."""
        self._reading = threading.RLock()
        """Held while bytes are written to their destination."""
        self.heard_s = time.monotonic()
        """Time at which data last arrived."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def start(self) -> None:
        self._loop.add(self)

    def send(self, frame: Frame, body: memoryview | None = None, done: Done | None = None) -> None:
        """Queue a frame, and send as much as the socket takes; `done` is called when the body has left this process."""
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
        for finished_done in finished:
            finished_done(None)

    def send_now(self, frame: Frame, body: bytes) -> bool:
        """Send a last frame unless others are queued before it; return at once whether it was sent."""
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
        """Wait until all pieces of this channel have begun to leave."""
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
        """No longer touch the memory of this channel's messages; other channels go on as before."""
        with self._lock:
            self._pieces = deque(
                piece for piece in self._pieces if piece[0].channel != channel or piece[0].kind is not FrameKind.PIECE
            )
            self._out = deque((memoryview(bytes(data)), done) for data, done in self._out)  # they may be half sent
        with self._reading:
            if self._incoming is not None and self._incoming.frame.channel == channel:
                self._incoming.divert()

    def cut(self) -> None:
        """End the stream at once and fail its unsent messages; the loop closes the socket."""
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
                for done in finished:
                    done(None)
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
        why = f"its data could not be handled ({type(error).__name__}: {error})"
        try:
            self._receiver.on_broken(self.peer, why)
        finally:
            self._close(why)

    def _take_unsent(self) -> list[Done]:
        """Drop everything that was not sent, and return its callbacks. The lock is held."""
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
        """Send as much as the socket takes, and return the callbacks of what has left. The lock is held."""
        finished: list[Done] = []
        try:
            while self._out or self._refill():
                buffers = [self._out[i][0] for i in range(min(len(self._out), _MAX_BUFFERS))]
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
            self._refill()  # while the socket still has data to send
        except OSError:
            return finished  # reading finds the reason, and closes the stream
        self._watch(bool(self._out))
        return finished

    def _refill(self) -> bool:
        """Queue more pieces where few bytes are queued, and return whether anything is. The lock is held."""
        if not self._pieces:
            return bool(self._out)
        ready_bytes = sum(self._out[i][0].nbytes for i in range(min(len(self._out), _MAX_BUFFERS)))
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
                    memory = memoryview(self._inbox)[self._have :] if incoming is None else incoming.missing
                    count = self._socket.recv_into(memory)
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
                if self._incoming is None and count < memory.nbytes:
                    return  # that was all; the loop reports when more arrives

    def _parse(self) -> None:
        """Take frames out of the inbox; the rest of an incomplete body is read straight into its destination."""
        inbox = memoryview(self._inbox)
        offset = 0
        while self._incoming is None and self._have - offset >= HEADER_BYTES:
            frame = Frame.unpack(inbox[offset : offset + HEADER_BYTES])
            offset += HEADER_BYTES
            num_here = min(frame.num_bytes, self._have - offset)
            with self._reading:
                body = self._receiver.body_of(self.peer, frame) if frame.num_bytes else inbox[0:0]
                body[:num_here] = inbox[offset : offset + num_here]
                if num_here < frame.num_bytes:
                    self._incoming = _Incoming(frame, body, num_here)
            offset += num_here
            if num_here == frame.num_bytes:
                self._deliver(frame, body, NOT_CHECKED if frame.body_check == NOT_CHECKED else checksum(body))
        num_left = self._have - offset
        self._inbox[:num_left] = self._inbox[offset : self._have]
        self._have = num_left

    def _deliver(self, frame: Frame, body: memoryview, check: int) -> None:
        if check != frame.body_check:
            raise DamagedMessage(
                f"{frame.num_bytes} bytes of a message were altered in flight: their checksum is wrong"
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
    """Call all callbacks, even if one of them fails."""
    for done in callbacks:
        try:
            done(error)
        except Exception:
            logger.exception("the callback of a message failed")


def _shutdown(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # it is not connected any more
        sock.shutdown(how)
