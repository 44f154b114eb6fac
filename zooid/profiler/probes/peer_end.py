"""Bandwidth and round trips between one member and its peers, over plain TCP streams."""

import contextlib
import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from zooid.core.errors import CommTimeout, PeerLost
from zooid.profiler.probes.probe_listener import Address, ProbeListener, Purpose, connect, find_host
from zooid.profiler.probes.probe_rounds import Kind, ProbeFlow, ProbeRound
from zooid.profiler.probes.steady_window import SteadyWindow

_CHUNK_BYTES = 2**18
_TICK_S = 0.2
_GRACE_S = 10.0
"""A peer that is later than expected by this many seconds is lost."""
_MESSAGE = b"zooid round trip".ljust(64)
_NUM_MESSAGES = 20


@dataclass(frozen=True)
class FlowPart:
    """The work of one member for one of its flows in a round."""

    flow_number: int
    is_source: bool
    peer: str
    streams: list[socket.socket]


class PeerEnd:
    """Measures the flows that one member is an end of.

    All members know who can reach whom. The source of a flow connects where it can, otherwise the target does.
    """

    def __init__(
        self,
        listener: ProbeListener,
        names: Sequence[str],
        rank: int,
        addresses: Sequence[Address],
        window: SteadyWindow,
        *,
        timeout_s: float,
    ) -> None:
        self._listener = listener
        self._names = names
        self._rank = rank
        self._addresses = addresses
        self._window = window
        self._timeout_s = timeout_s
        self._reached: list[list[str]] = []
        self._failures: list[list[str]] = []

    def look_for_peers(self) -> list[tuple[str, str]]:
        """Return for each rank the host at which this member reaches it, or "" and the reason."""
        others = [rank for rank in range(len(self._names)) if rank != self._rank]
        with ThreadPoolExecutor(len(others)) as pool:
            hosts = dict(zip(others, pool.map(lambda rank: find_host(self._addresses[rank]), others), strict=True))
        return [hosts.get(rank, ("", "")) for rank in range(len(self._names))]

    def learn(self, reached_hosts: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Take the results of `look_for_peers` from all members."""
        self._reached = [[host for host, _ in hosts] for hosts in reached_hosts]
        self._failures = [[reason for _, reason in hosts] for hosts in reached_hosts]

    def is_joined(self, flow: ProbeFlow) -> bool:
        return self._connector(flow) is not None

    def why_missing(self, flow: ProbeFlow) -> str:
        source, target = flow
        return (
            f"{self._names[source]} cannot connect to {self._names[target]} ({self._failures[source][target]}), nor "
            f"the other way round ({self._failures[target][source]})"
        )

    @contextlib.contextmanager
    def opened(self, probe_round: ProbeRound, measurement: int) -> Iterator[list[FlowPart]]:
        """Open the connections for this member's flows in a round, so that all members can begin at once."""
        with contextlib.ExitStack() as stack:
            parts = []
            for number, flow in enumerate(probe_round.flows):
                if self._rank in flow:
                    streams = self._open(flow, Purpose(measurement, number), probe_round.num_streams)
                    for stream in streams:
                        stack.callback(stream.close)
                    parts.append(FlowPart(number, flow.source == self._rank, self._names[self._peer(flow)], streams))
            yield parts

    def measure(self, kind: Kind, parts: Sequence[FlowPart]) -> dict[int, float]:
        """Run this member's parts of a round at the same time, and return the measured values by flow number."""
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            values = list(pool.map(lambda part: self._run_part(kind, part), parts))
        return {part.flow_number: value for part, value in zip(parts, values, strict=True) if value is not None}

    def _run_part(self, kind: Kind, part: FlowPart) -> float | None:
        """Run one part, and close its streams as soon as it ends, since the peer waits for that."""
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

    def _open(self, flow: ProbeFlow, purpose: Purpose, num_streams: int) -> list[socket.socket]:
        peer = self._peer(flow)
        if self._connector(flow) == self._rank:
            return connect(
                self._addresses[peer], self._reached[self._rank][peer], purpose, num_streams, self._names[peer]
            )
        return self._listener.accept(purpose, num_streams, self._names[peer], self._timeout_s)

    def _peer(self, flow: ProbeFlow) -> int:
        return flow.target if flow.source == self._rank else flow.source

    def _connector(self, flow: ProbeFlow) -> int | None:
        """Return the rank that connects for this flow; None where neither end reaches the other."""
        for rank, peer in (flow, reversed(flow)):
            if self._reached[rank][peer]:
                return rank
        return None


def send(streams: Sequence[socket.socket], window: SteadyWindow, name: str) -> None:
    """Send on all streams until the receiver has measured enough and closes them."""
    data = bytes(_CHUNK_BYTES)
    began_s = time.monotonic()
    with _watching(streams, selectors.EVENT_WRITE) as selector:
        while time.monotonic() < began_s + window.total_s + _GRACE_S:
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


def receive(streams: Sequence[socket.socket], window: SteadyWindow, name: str) -> float:
    """Return the bytes per second of all streams, between two arrivals that are the counted time apart."""
    buffer = bytearray(_CHUNK_BYTES)
    num_bytes = 0
    spans_s = (0.0, window.lead_s, window.counted_s, window.tail_s)
    marks: list[tuple[float, int]] = []
    """The time at which each of these spans ended, and the bytes received by then."""
    deadline_s = time.monotonic() + window.total_s + _GRACE_S
    with _watching(streams, selectors.EVENT_READ) as selector:
        while (now_s := time.monotonic()) < deadline_s:
            arrived = sum(_receive_some(key.fileobj, buffer, name) for key, _ in selector.select(_TICK_S))
            num_bytes += arrived
            if arrived and (not marks or now_s >= marks[-1][0] + spans_s[len(marks)]):
                marks.append((time.monotonic(), num_bytes))
            if len(marks) == len(spans_s):
                (from_s, bytes_before), (to_s, bytes_after) = marks[1:3]
                return (bytes_after - bytes_before) / (to_s - from_s)
    raise CommTimeout(f"member {name} sends too few bytes to be measured, or has stopped sending")


def send_messages(stream: socket.socket, name: str) -> float:
    """Return the median round trip of a small message, in seconds."""
    stream.settimeout(_GRACE_S)
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
    """Return every message, and wait until the peer closes the connection."""
    stream.settimeout(_GRACE_S)
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
            raise ConnectionError("the peer closed the connection")
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
        raise PeerLost(f"member {name} closed a connection before it had sent all its bytes")
    return num_bytes


def _watching(streams: Sequence[socket.socket], event: int) -> selectors.BaseSelector:
    selector = selectors.DefaultSelector()
    for stream in streams:
        stream.setblocking(False)
        selector.register(stream, event)
    return selector
