"""Connects every rank of a group with every other.

A rank publishes its endpoint and a secret in the rendezvous store. Higher ranks connect there and prove that they know
the secret; strangers and ranks of other runs are rejected.
"""

import contextlib
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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
from zooid.comm.traffic_counter import Counter
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommTimeout
from zooid.core.resources.addresses import own_addresses, own_network

_READ_AHEAD_BYTES = 2**16
"""On the stream for small messages, one read takes many of them."""
_TICK_S = 0.05
_NUM_DIALED_AT_ONCE = 8
_ROUND_TRIP_KEY = "tcp/round_trip_s"

Streams = dict[int, dict[int, socket.socket]]
"""Sockets by peer rank and stream number."""


def connect(
    store: Any, rank: int, size: int, options: Options, *, timeout_s: float, abort: Abort, counter: Counter
) -> tuple[TcpTransport, float | None]:
    """Connect with all other ranks; return the transport and the round trip that all ranks agree on."""
    transport = TcpTransport(counter)
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

    def __init__(self, store: Any, rank: int, size: int, options: Options, timeout_s: float, abort: Abort) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._options = options
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._abort = abort
        self._is_over = threading.Event()
        """Set when this rank has given up, so that its threads end."""
        self._round_trips_s: list[float] = []
        self._failure: BaseException | None = None

    def connect(self) -> Streams:
        """Return the sockets to all other ranks."""
        admission = self._listen() if self._rank + 1 < self._size else None
        dialed: Streams = {}
        admitting = self._start_admitting(admission)
        try:
            dialed = self._dial_all()
            while admitting is not None and admitting.is_alive():
                admitting.join(_TICK_S)
                self._check()
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self._is_over.set()
            _close(dialed)
            if admission is not None and admitting is not None:
                admitting.join()
                admission.close()
            raise
        return dialed | (admission.streams() if admission is not None else {})

    def agree_on_latency(self) -> float | None:
        """Return the round trip from rank 1 to rank 0, which counts for all, since all must choose alike."""
        if self._size <= 2:
            return None
        if self._rank == 1:
            self._store.set(_ROUND_TRIP_KEY, repr(min(self._round_trips_s)))
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
        return Admission(listener, secret, self._rank, self._size)

    def _start_admitting(self, admission: Admission | None) -> threading.Thread | None:
        if admission is None:
            return None

        def admit() -> None:
            try:
                admission.admit_all(self._deadline_s, self._timeout_s, self._check)
            except BaseException as error:  # noqa: BLE001  # raised by `connect`, in the caller's thread
                self._failure = error

        thread = threading.Thread(target=admit, name="zooid-listener", daemon=True)
        thread.start()
        return thread

    def _dial_all(self) -> Streams:
        """Connect to all lower ranks, several at once."""
        if self._rank == 0:
            return {}
        dialer = Dialer(self._rank, own_network(), self._options.num_streams, self._deadline_s, self._check)
        dialed: Streams = {}
        with ThreadPoolExecutor(min(self._rank, _NUM_DIALED_AT_ONCE), "zooid-dial") as pool:
            calls = []
            try:
                for peer in range(self._rank):
                    calls.append((peer, pool.submit(dialer.connect, peer, self._endpoint_of(peer))))
                for peer, call in calls:
                    dialed[peer], round_trip_s = call.result()
                    self._round_trips_s.append(round_trip_s)
            except BaseException:
                self._is_over.set()
                for _, call in calls:
                    if not call.cancel():
                        with contextlib.suppress(Exception):
                            _close({0: call.result()[0]})
                raise
        return dialed

    def _endpoint_of(self, peer: int) -> Endpoint:
        left_s = max(0.001, self._deadline_s - time.monotonic())
        try:
            self._store.wait([f"tcp/{peer}"], timedelta(seconds=left_s))
        except RuntimeError as error:
            self._abort.check()
            raise CommTimeout(f"rank {peer} did not come to the group within {self._timeout_s:g} s") from error
        return decode_endpoint(bytes(self._store.get(f"tcp/{peer}")), peer)


def _close(streams: Streams) -> None:
    for numbered in streams.values():
        for sock in numbered.values():
            sock.close()
