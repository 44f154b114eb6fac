"""How the ranks of a group connect, each with each.

A rank publishes where it listens and a secret in the meeting store; whoever connects must know the secret, so that a
stranger, or a rank of another run, is turned away.
"""

import contextlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections import defaultdict
from datetime import timedelta
from typing import Any

from zooid.comm.options import Options
from zooid.comm.statistics import Counter
from zooid.comm.tcp.loop import process_loop
from zooid.comm.tcp.stream import Stream
from zooid.comm.tcp.transport import TcpTransport
from zooid.core.abort import Abort
from zooid.core.errors import CommError, CommTimeout
from zooid.core.network import own_addresses, own_network
from zooid.schedule.streams import streams_between

_HELLO = struct.Struct("<32sIHH")
"""Secret, own rank, number of the stream, streams for large messages."""
_WELCOME = b"zooid-ok"
_CONNECT_TIMEOUT_S = 3.0
_TICK_S = 0.2
_NOT_SENT_BYTES = 2**17
"""That a socket takes before they can be sent."""
_READ_AHEAD_BYTES = 2**16
"""Where messages are small, one look at the socket takes many of them."""
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 11_000))
"""A machine that vanished without a word is noticed after 11 s, whether something is sent to it or not."""


def connect(
    store: Any, rank: int, size: int, options: Options, *, timeout_s: float, abort: Abort, counter: Counter
) -> tuple[TcpTransport, float | None]:
    """Connect with all other ranks; the transport, and the round trip as all ranks know it."""
    transport = TcpTransport(counter)
    mesh = _Mesh(store, rank, size, options, time.monotonic() + timeout_s, timeout_s, abort)
    try:
        sockets = mesh.connect()
    except BaseException:
        mesh.close()
        raise
    loop = process_loop()
    transport.start(
        {
            peer: [
                Stream(sock, peer, transport, loop, read_ahead=0 if number else _READ_AHEAD_BYTES)
                for number, sock in sorted(numbered.items())
            ]
            for peer, numbered in sockets.items()
        }
    )
    return transport, mesh.agree_on_latency()


class _Mesh:
    def __init__(
        self, store: Any, rank: int, size: int, options: Options, deadline_s: float, timeout_s: float, abort: Abort
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._options = options
        self._deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._abort = abort
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sockets: defaultdict[int, dict[int, socket.socket]] = defaultdict(dict)
        self._num_streams: dict[int, int] = {}
        self._round_trips_s: list[float] = []
        self._listener = socket.create_server(("", 0), backlog=max(128, 16 * size))
        self._failure: BaseException | None = None

    def connect(self) -> dict[int, dict[int, socket.socket]]:
        if self._size == 1:
            self._listener.close()
            return {}
        self._publish()
        accepting = threading.Thread(target=self._accept_all, name="zooid-accept", daemon=True)
        accepting.start()
        for peer in range(self._rank):
            self._connect_to(peer)
        while accepting.is_alive():
            accepting.join(_TICK_S)
            self._abort.check()
        if self._failure is not None:
            raise self._failure
        self._listener.close()
        return dict(self._sockets)

    def close(self) -> None:
        self._listener.close()
        for numbered in list(self._sockets.values()):
            for sock in numbered.values():
                sock.close()

    def agree_on_latency(self) -> float | None:
        """What rank 1 measured to rank 0 counts for all, since all must choose alike."""
        if self._size <= 2:
            return None
        if self._rank == 1:
            self._store.set("tcp/round_trip_s", repr(min(self._round_trips_s)))
        return float(self._store.get("tcp/round_trip_s").decode())

    def _publish(self) -> None:
        addresses = [self._options.address] if self._options.address else own_addresses()
        record = {
            "addresses": addresses,
            "port": self._listener.getsockname()[1],
            "secret": self._secret.hex(),
            "network": own_network(),
        }
        self._store.set(f"tcp/{self._rank}", json.dumps(record))

    def _accept_all(self) -> None:
        try:
            self._listener.settimeout(_TICK_S)
            while missing := self._missing():
                if time.monotonic() > self._deadline_s:
                    names = ", ".join(map(str, missing))
                    raise CommTimeout(f"ranks {names} did not connect to rank {self._rank} in {self._timeout_s:g} s")
                self._abort.check()
                with contextlib.suppress(TimeoutError):
                    sock, _ = self._listener.accept()
                    self._admit(sock)
        except Exception as error:  # noqa: BLE001  # raised by `connect`, in the caller's thread
            self._failure = error

    def _missing(self) -> list[int]:
        with self._lock:
            return [
                peer
                for peer in range(self._rank + 1, self._size)
                if len(self._sockets[peer]) < 1 + self._num_streams.get(peer, 1)
            ]

    def _admit(self, sock: socket.socket) -> None:
        """Let a connection in if it knows the secret; whoever does not is left alone."""
        try:
            sock.settimeout(_CONNECT_TIMEOUT_S)
            secret, peer, number, num_streams = _HELLO.unpack(_receive_exactly(sock, _HELLO.size))
            if not hmac.compare_digest(secret, self._secret) or not self._rank < peer < self._size:
                sock.close()
                return
            sock.sendall(_WELCOME)
        except OSError:
            sock.close()
            return
        _prepare(sock)
        with self._lock:
            self._sockets[peer][number] = sock
            if number > 0:
                self._num_streams[peer] = num_streams

    def _connect_to(self, peer: int) -> None:
        record = self._record_of(peer)
        candidates = [str(address) for address in record["addresses"]]
        if record["network"] == own_network():
            candidates.insert(0, "127.0.0.1")
        first, round_trip_s = self._open(peer, candidates, record, 0, 0)
        self._round_trips_s.append(round_trip_s)
        num_streams = self._options.num_streams or streams_between(round_trip_s)
        address = first.getpeername()[0]
        with self._lock:
            self._sockets[peer][0] = first
        for number in range(1, num_streams + 1):
            sock, _ = self._open(peer, [address], record, number, num_streams)
            with self._lock:
                self._sockets[peer][number] = sock

    def _record_of(self, peer: int) -> dict[str, Any]:
        left_s = max(0.001, self._deadline_s - time.monotonic())
        try:
            self._store.wait([f"tcp/{peer}"], timedelta(seconds=left_s))
        except RuntimeError as error:
            self._abort.check()
            raise CommTimeout(f"rank {peer} did not come to the group within {self._timeout_s:g} s") from error
        record: dict[str, Any] = json.loads(self._store.get(f"tcp/{peer}"))
        return record

    def _open(
        self, peer: int, candidates: list[str], record: dict[str, Any], number: int, num_streams: int
    ) -> tuple[socket.socket, float]:
        """A connection that the peer has welcomed, and the round trip of that."""
        failures: dict[str, str] = {}
        while time.monotonic() < self._deadline_s:
            for address in candidates:
                self._abort.check()
                try:
                    sock = socket.create_connection((address, record["port"]), _CONNECT_TIMEOUT_S)
                    _prepare(sock)
                    began_s = time.monotonic()
                    sock.sendall(_HELLO.pack(bytes.fromhex(record["secret"]), self._rank, number, num_streams))
                    if _receive_exactly(sock, len(_WELCOME)) == _WELCOME:
                        return sock, time.monotonic() - began_s
                    failures[address] = "it did not welcome us"
                except OSError as error:
                    failures[address] = str(error)
            self._abort.sleep(_TICK_S)
        tried = "; ".join(f"{address}: {why}" for address, why in failures.items())
        raise CommError(
            f"rank {self._rank} cannot connect to rank {peer} ({tried}); if ranks do not reach each other, use the "
            "transport `store`, and if they do by another address, give each its `address`"
        )


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # so that what has left this process is on its way, not in a buffer
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        more = sock.recv(num_bytes - len(data))
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
    return bytes(data)
