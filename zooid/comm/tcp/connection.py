"""The connection between two members, which outlives the groups that use it.

Every group has its own channel, whose number is used once. One member may open a channel before the other does: frames
that arrive until then are kept, within the credit of a group. Frames for a closed channel are dropped.
"""

import threading
from collections.abc import Sequence

from zooid.comm.tcp.frames import NOBODY, Frame, FrameKind
from zooid.comm.tcp.outbox import CREDIT_BYTES, MAX_WAITING, cost_bytes
from zooid.comm.tcp.stream import Stream
from zooid.comm.tcp.tcp_transport import GRACE_S, TcpTransport
from zooid.comm.transport_protocol import Done
from zooid.core.errors import CommError

CONNECTION_CHANNEL = 0
"""The channel of the connection itself. Groups have channels from 1 on."""


class Connection:
    """All streams to one member, and the groups that it shares with this one."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the member at the other end."""
        self.streams: Sequence[Stream] = ()
        self.lost: str | None = None
        """Why the member was lost; None while it is there."""
        self._lock = threading.Lock()
        self._open: dict[int, tuple[TcpTransport, int]] = {}
        """The transport of every open channel, and the member's rank in its group."""
        self._closed: set[int] = set()
        self._early: dict[int, list[tuple[Frame, memoryview]]] = {}
        """Frames that arrived for channels which are not open yet."""
        self._num_early = 0
        self._early_bytes = 0
        self._num_ended = 0
        """Number of streams that have ended."""

    def start(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        for stream in streams:
            stream.start()

    def channel(self, number: int) -> list["ChannelStream"]:
        """Return the streams as the group on this channel sees them."""
        return [ChannelStream(stream, self, number) for stream in self.streams]

    def open(self, number: int, transport: TcpTransport, rank: int) -> None:
        """Deliver frames of this channel to a group: those that have arrived, and all later ones."""
        while True:
            with self._lock:
                lost = self.lost
                early = self._take_early(number)
                if not early and lost is None:
                    self._open[number] = (transport, rank)
                    return
            if not early:
                transport.on_broken(rank, lost or "")
                return
            try:
                for frame, body in early:
                    if body.nbytes:
                        transport.body_of(rank, frame)[:] = body
                    transport.on_frame(rank, frame, body)
            except CommError as error:
                self.lose(str(error))

    def close(self, number: int) -> None:
        """Drop frames of this channel from now on, and no longer touch the memory of its messages."""
        with self._lock:
            self._open.pop(number, None)
            self._take_early(number)
            self._closed.add(number)
        for stream in self.streams:
            stream.forget(number)

    def send_heartbeat(self) -> None:
        if self.lost is None:
            self.streams[0].send(Frame(FrameKind.HEARTBEAT, NOBODY, 0))

    @property
    def heard_s(self) -> float:
        """Time at which data last arrived from the member, by this machine's monotonic clock."""
        return max(stream.heard_s for stream in self.streams)

    def lose(self, why: str) -> None:
        """Declare the member lost in all groups, and cut its streams."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = why
            groups = list(self._open.values())
            self._early.clear()
        for transport, rank in groups:
            transport.on_broken(rank, why)
        for stream in self.streams:
            stream.cut()

    def leave(self) -> None:
        """Tell the member that this one is done with all groups."""
        for stream in self.streams:
            stream.send(Frame(FrameKind.LEAVE, NOBODY, 0))

    def body_of(self, peer: int, frame: Frame) -> memoryview:
        with self._lock:
            group = self._open.get(frame.channel)
            is_known = group is not None or frame.channel in self._closed or frame.channel == CONNECTION_CHANNEL
        if group is not None:
            transport, rank = group
            return transport.body_of(rank, frame)
        if not is_known and frame.kind is FrameKind.PIECE:
            raise CommError(f"it sent {frame.num_bytes} bytes of a message that was not asked for")
        return memoryview(bytearray(frame.num_bytes))

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        if frame.channel == CONNECTION_CHANNEL:
            if frame.kind not in (FrameKind.HEARTBEAT, FrameKind.LEAVE):
                raise CommError(f"it sent a frame {frame.kind.name} that belongs to no group")
            return
        with self._lock:
            group = self._open.get(frame.channel)
            if group is None:
                self._keep_early(frame, body)
        if group is not None:
            transport, rank = group
            transport.on_frame(rank, frame, body)

    def on_broken(self, peer: int, why: str) -> None:
        self.lose(why)

    def on_closed(self, peer: int, has_left: bool, why: str) -> None:
        """Note that one stream has ended; what the member sent on its other streams is still to be read."""
        with self._lock:
            self._num_ended += 1
            num_left = len(self.streams) - self._num_ended
        reason = "it has left" if has_left else why
        if num_left <= 0:
            self.lose(reason)
        elif self._num_ended == 1:
            timer = threading.Timer(GRACE_S, self.lose, (reason,))
            timer.daemon = True
            timer.start()

    def _take_early(self, number: int) -> list[tuple[Frame, memoryview]]:
        """Remove and return the frames that arrived before a channel was opened. The lock is held."""
        early = self._early.pop(number, [])
        self._num_early -= len(early)
        self._early_bytes -= sum(cost_bytes(body.nbytes) for _, body in early)
        return early

    def _keep_early(self, frame: Frame, body: memoryview) -> None:
        """Keep a frame that arrived before its channel was opened. The lock is held."""
        if frame.channel in self._closed or self.lost is not None:
            return
        self._num_early += 1
        self._early_bytes += cost_bytes(body.nbytes)
        if self._num_early > MAX_WAITING or self._early_bytes > CREDIT_BYTES:
            raise CommError("it sent too much for groups that are not open yet")
        self._early.setdefault(frame.channel, []).append((frame, body))


class ChannelStream:
    """One stream of a connection, as the group on one channel sees it."""

    def __init__(self, stream: Stream, connection: Connection, number: int) -> None:
        self._stream = stream
        self._connection = connection
        self._number = number

    def start(self) -> None:
        """Do nothing: the connection has started the stream."""

    def send(self, frame: Frame, body: memoryview | None = None, done: Done | None = None) -> None:
        self._stream.send(frame._replace(channel=self._number), body, done)

    def send_now(self, frame: Frame, body: bytes) -> bool:
        self.send(frame, memoryview(body))
        return True

    def drain(self, deadline_s: float) -> bool:
        """Wait until all pieces have begun to leave: the connection delivers them even after the group has ended."""
        return self._stream.drain_pieces(self._number, deadline_s)

    def end_sending(self) -> None:
        self._connection.close(self._number)

    cut = end_sending
