"""One member and its peers: plain streams of bytes, and small messages there and back."""

import contextlib
import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from zooid.core.errors import CommTimeout, PeerLost
from zooid.profiler.probes.door import Address, Door, Purpose, connect, find_host
from zooid.profiler.probes.probe_rounds import Flow, Kind, Round
from zooid.profiler.probes.steady_window import Window

_CHUNK_BYTES = 2**18
_TICK_S = 0.2
_PATIENCE_S = 10.0
"""A peer that is so much later than it should be is lost."""
_MESSAGE = b"there and back again".ljust(64)
_NUM_MESSAGES = 20


@dataclass(frozen=True)
class Part:
    """What one member does in a round for one of its flows."""

    flow_number: int
    is_source: bool
    peer: str
    streams: list[socket.socket]


class PeerEnd:
    """Measures, for one member, the flows that it is an end of.

    Everybody knows what all have found, and so who connects to whom: the source where it can, otherwise the target.
    """

    def __init__(
        self,
        door: Door,
        names: Sequence[str],
        rank: int,
        addresses: Sequence[Address],
        window: Window,
        *,
        timeout_s: float,
    ) -> None:
        self._door = door
        self._names = names
        self._rank = rank
        self._addresses = addresses
        self._window = window
        self._timeout_s = timeout_s
        self._reached: list[list[str]] = []
        self._failures: list[list[str]] = []

    def look_for_peers(self) -> list[tuple[str, str]]:
        """For each rank the host at which this member reaches it, or none and why."""
        others = [rank for rank in range(len(self._names)) if rank != self._rank]
        with ThreadPoolExecutor(len(others)) as pool:
            found = dict(zip(others, pool.map(lambda rank: find_host(self._addresses[rank]), others), strict=True))
        return [found.get(rank, ("", "")) for rank in range(len(self._names))]

    def learn(self, found: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Take what all members have found."""
        self._reached = [[host for host, _ in of_member] for of_member in found]
        self._failures = [[why for _, why in of_member] for of_member in found]

    def is_joined(self, flow: Flow) -> bool:
        return self._connector(flow) is not None

    def why_missing(self, flow: Flow) -> str:
        source, target = flow
        return (
            f"{self._names[source]} cannot connect to {self._names[target]} ({self._failures[source][target]}), nor "
            f"the other way round ({self._failures[target][source]})"
        )

    @contextlib.contextmanager
    def opened(self, each: Round, purpose: int) -> Iterator[list[Part]]:
        """Connect for this member's part in a round, so that all can begin at once; `purpose` is the round's own."""
        with contextlib.ExitStack() as stack:
            parts = []
            for number, flow in enumerate(each.flows):
                if self._rank in flow:
                    streams = self._open(flow, Purpose(purpose, number), each.num_streams)
                    for stream in streams:
                        stack.callback(stream.close)
                    parts.append(Part(number, flow.source == self._rank, self._names[self._peer(flow)], streams))
            yield parts

    def measure(self, kind: Kind, parts: Sequence[Part]) -> dict[int, float]:
        """Do this member's parts in a round, at the same time; what it measured, by number of the flow."""
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            values = list(pool.map(lambda part: self._do(kind, part), parts))
        return {part.flow_number: value for part, value in zip(parts, values, strict=True) if value is not None}

    def _do(self, kind: Kind, part: Part) -> float | None:
        """One part. Its streams are closed when it ends, and not only when all parts have: the peer waits for that."""
        with contextlib.ExitStack() as stack:
            for stream in part.streams:
                stack.callback(stream.close)
            match kind, part.is_source:
                case "round_trip", True:
                    return send_messages(part.streams[0], part.peer)
                case "round_trip", False:
                    return_messages(part.streams[0], part.peer)
                case "bandwidth", True:
                    send(part.streams, self._window, part.peer)
                case "bandwidth", False:
                    return receive(part.streams, self._window, part.peer)
        return None

    def _open(self, flow: Flow, purpose: Purpose, num_streams: int) -> list[socket.socket]:
        peer = self._peer(flow)
        if self._connector(flow) == self._rank:
            return connect(
                self._addresses[peer], self._reached[self._rank][peer], purpose, num_streams, self._names[peer]
            )
        return self._door.accept(purpose, num_streams, self._names[peer], self._timeout_s)

    def _peer(self, flow: Flow) -> int:
        return flow.target if flow.source == self._rank else flow.source

    def _connector(self, flow: Flow) -> int | None:
        for one, other in (flow, reversed(flow)):
            if self._reached[one][other]:
                return one
        return None


def send(streams: Sequence[socket.socket], window: Window, name: str) -> None:
    """Send on all streams until the receiver has what it wanted, and closes them."""
    data = bytes(_CHUNK_BYTES)
    began_s = time.monotonic()
    with _watching(streams, selectors.EVENT_WRITE) as selector:
        while time.monotonic() < began_s + window.total_s + _PATIENCE_S:
            for key, _ in selector.select(_TICK_S):
                assert isinstance(key.fileobj, socket.socket)
                try:
                    key.fileobj.send(data)
                except BlockingIOError:
                    continue
                except OSError as error:
                    if time.monotonic() < began_s + window.lead_s + window.counted_s:
                        raise PeerLost(f"member {name} was lost while bytes were sent to it: {error}") from error
                    return
    raise CommTimeout(f"member {name} did not end a measurement in time")


def receive(streams: Sequence[socket.socket], window: Window, name: str) -> float:
    """Bytes per second of all streams together, between two arrivals that are the window's counted time apart."""
    buffer = bytearray(_CHUNK_BYTES)
    num_bytes = 0
    spans_s = (0.0, window.lead_s, window.counted_s, window.tail_s)
    marks: list[tuple[float, int]] = []
    """When each of these spans was over, and how many bytes were here by then."""
    deadline_s = time.monotonic() + window.total_s + _PATIENCE_S
    with _watching(streams, selectors.EVENT_READ) as selector:
        while (now_s := time.monotonic()) < deadline_s:
            arrived = sum(_receive_some(key.fileobj, buffer, name) for key, _ in selector.select(_TICK_S))
            num_bytes += arrived
            if arrived and (not marks or now_s >= marks[-1][0] + spans_s[len(marks)]):
                marks.append((time.monotonic(), num_bytes))
            if len(marks) == len(spans_s):
                (from_s, bytes_before), (to_s, bytes_after) = marks[1:3]
                return (bytes_after - bytes_before) / (to_s - from_s)
    raise CommTimeout(f"member {name} sends too little to be measured, or nothing any more")


def send_messages(stream: socket.socket, name: str) -> float:
    """Median seconds of a small message there and back."""
    stream.settimeout(_PATIENCE_S)
    times_s = []
    try:
        for _ in range(_NUM_MESSAGES):
            begin_s = time.monotonic()
            stream.sendall(_MESSAGE)
            _receive_message(stream)
            times_s.append(time.monotonic() - begin_s)
    except OSError as error:
        raise PeerLost(f"member {name} did not return a message: {error}") from error
    return statistics.median(times_s)


def return_messages(stream: socket.socket, name: str) -> None:
    """Send back what comes, and wait until the other end has got it all and closes the connection."""
    stream.settimeout(_PATIENCE_S)
    try:
        for _ in range(_NUM_MESSAGES):
            stream.sendall(_receive_message(stream))
        with contextlib.suppress(ConnectionResetError):
            stream.recv(1)
    except OSError as error:
        raise PeerLost(f"member {name} was lost between two messages: {error}") from error


def _receive_message(stream: socket.socket) -> bytes:
    message = b""
    while len(message) < len(_MESSAGE):
        more = stream.recv(len(_MESSAGE) - len(message))
        if not more:
            raise ConnectionError("it closed the connection")
        message += more
    return message


def _receive_some(stream: object, buffer: bytearray, name: str) -> int:
    assert isinstance(stream, socket.socket)
    try:
        num_bytes = stream.recv_into(buffer)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerLost(f"member {name} was lost while it sent bytes: {error}") from error
    if not num_bytes:
        raise PeerLost(f"member {name} closed a connection while it was to send bytes")
    return num_bytes


def _watching(streams: Sequence[socket.socket], event: int) -> selectors.BaseSelector:
    selector = selectors.DefaultSelector()
    for stream in streams:
        stream.setblocking(False)
        selector.register(stream, event)
    return selector
