"""Connects every rank of a group with every other, or new ranks with ranks that are connected already.

A rank publishes its endpoint and a secret in the rendezvous store. Higher ranks connect there and prove that they know
the secret; strangers and ranks of other runs are rejected.
"""

import secrets
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from zooid.comm.group_options import Options
from zooid.comm.tcp.admission import Admission
from zooid.comm.tcp.dialer import Dialer
from zooid.comm.tcp.endpoint import Endpoint, decode_endpoint, decode_round_trip_s
from zooid.comm.tcp.handshake import SECRET_BYTES
from zooid.comm.tcp.loop import process_loop
from zooid.comm.tcp.sockets import listen
from zooid.comm.tcp.stream import Receiver, Stream
from zooid.comm.tcp.tcp_transport import TcpTransport
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommTimeout
from zooid.core.resources.addresses import own_addresses, own_network

_READ_AHEAD_BYTES = 2**16
"""On the stream for small messages, one read takes many of them."""
_MAX_DIALS = 8
_ROUND_TRIP_KEY = "tcp/round_trip_s"

Streams = dict[int, dict[int, socket.socket]]
"""Sockets by peer rank and stream number."""


def connect(
    store: Any, rank: int, size: int, options: Options, *, timeout_s: float, abort: Abort
) -> tuple[TcpTransport, float | None]:
    """Connect with all other ranks; return the transport and the round trip that all ranks agree on."""
    transport = TcpTransport()
    mesh = Mesh(store, rank, size, options, timeout_s, abort)
    transport.start({peer: streams_over(sockets, peer, transport) for peer, sockets in mesh.connect().items()})
    try:
        return transport, mesh.agree_on_latency()
    except BaseException as error:
        transport.close(f"{type(error).__name__}: {error}")
        raise


def streams_over(sockets: dict[int, socket.socket], peer: int, receiver: Receiver) -> list[Stream]:
    """Return the streams to one peer, ordered by number."""
    loop = process_loop()
    return [
        Stream(sock, peer, receiver, loop, read_ahead=0 if number else _READ_AHEAD_BYTES)
        for number, sock in sorted(sockets.items())
    ]


class Mesh:
    """One rank's part in connecting all ranks."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        options: Options,
        timeout_s: float,
        abort: Abort,
        num_connected: int = 0,
    ) -> None:
        """The first `num_connected` ranks are connected with each other already."""
        self._store = store
        self._rank = rank
        self._size = size
        self._num_connected = num_connected
        self._options = options
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._abort = abort
        self._is_over = threading.Event()
        """Set when this rank has given up, so that its threads end."""
        self._round_trips_s: list[float] = []

    def connect(self) -> Streams:
        """Return the sockets to all other ranks that are new: lower ranks are dialed, higher ranks are admitted."""
        num_dialed = self._rank if self._rank >= self._num_connected else 0
        admission = self._listen() if self._first_admitted < self._size else None
        dialer = Dialer(self._rank, own_network(), self._options.num_streams, self._deadline_s, self._check)
        streams: Streams = {}
        dials: dict[int, Future[tuple[dict[int, socket.socket], float]]] = {}
        with ThreadPoolExecutor(1 + min(num_dialed, _MAX_DIALS), "zooid-connect") as pool:
            admitting = pool.submit(self._admit, admission)
            try:
                for peer in range(num_dialed):
                    dials[peer] = pool.submit(dialer.connect, peer, self._endpoint_of(peer))
                for peer, dial in dials.items():
                    streams[peer], round_trip_s = dial.result()
                    self._round_trips_s.append(round_trip_s)
                return streams | admitting.result()
            except BaseException:
                self._is_over.set()
                pool.shutdown(cancel_futures=True)
                opened = [dial.result()[0] for dial in dials.values() if not dial.cancelled() and not dial.exception()]
                for sock in [sock for sockets in opened for sock in sockets.values()]:
                    sock.close()
                if admission is not None:
                    admission.close()
                raise

    @property
    def _first_admitted(self) -> int:
        return max(self._rank + 1, self._num_connected)

    def agree_on_latency(self, known_s: float | None = None) -> float | None:
        """Return a round trip that counts for all ranks: all must choose alike.

        More than two connected ranks keep the one that they know, and the first of them tells it to the new ranks: a
        rendezvous that fails halfway must not leave them with different ones. Otherwise, the first new rank that dials
        tells its own. Two ranks do not need it.
        """
        if self._size <= 2:
            return None
        keeps_known = self._num_connected > 2
        if self._rank == (0 if keeps_known else max(1, self._num_connected)):
            self._store.set(_ROUND_TRIP_KEY, repr(known_s if keeps_known else min(self._round_trips_s)))
        if keeps_known and self._rank < self._num_connected:
            return known_s
        return decode_round_trip_s(bytes(self._store.get(_ROUND_TRIP_KEY)))

    def _check(self) -> None:
        """Raise if this rank has given up the rendezvous."""
        self._abort.check()
        if self._is_over.is_set():
            raise CommAborted("the rendezvous of this group has failed")

    def _listen(self) -> Admission:
        listener = listen(self._options)
        secret = secrets.token_bytes(SECRET_BYTES)
        endpoint = Endpoint(
            addresses=[self._options.address] if self._options.address else own_addresses() or ["127.0.0.1"],
            port=listener.getsockname()[1],
            secret=secret.hex(),
            network=own_network(),
            has_loopback=listener.getsockname()[0] in ("0.0.0.0", "127.0.0.1"),
        )
        try:
            self._store.set(f"tcp/{self._rank}", endpoint.encode().decode())
        except BaseException:
            listener.close()
            raise
        return Admission(listener, secret, self._rank, range(self._first_admitted, self._size))

    def _admit(self, admission: Admission | None) -> Streams:
        if admission is None:
            return {}
        admission.admit_all(self._deadline_s, self._timeout_s, self._check)
        return admission.streams()

    def _endpoint_of(self, peer: int) -> Endpoint:
        left_s = max(0.001, self._deadline_s - time.monotonic())
        try:
            self._store.wait([f"tcp/{peer}"], timedelta(seconds=left_s))
        except RuntimeError as error:
            self._abort.check()
            raise CommTimeout(f"rank {peer} did not come to the group within {self._timeout_s:g} s") from error
        return decode_endpoint(bytes(self._store.get(f"tcp/{peer}")), peer)
