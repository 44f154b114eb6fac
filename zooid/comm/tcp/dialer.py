"""Connects one rank to the listeners of others, and retries until the group's deadline."""

import socket
import time
from collections.abc import Callable

from zooid.comm.tcp.endpoint import Endpoint
from zooid.comm.tcp.handshake import DONE, SETTLED, WELCOME_BYTES, Hello, confirm, is_welcome
from zooid.comm.tcp.sockets import prepare
from zooid.core.errors import CommError
from zooid.schedule.stream_rules import streams_between

_CONNECT_S = 3.0
_ATTEMPT_S = 10.0
"""The time for one whole handshake. If the peer's machine stalls for longer, the rank connects anew."""
_TICK_S = 0.05


class Dialer:
    """Opens the streams from one rank to lower ranks."""

    def __init__(
        self, rank: int, network: str, num_streams: int | None, deadline_s: float, check: Callable[[], None]
    ) -> None:
        self._rank = rank
        self._network = network
        self._num_streams = num_streams
        self._deadline_s = deadline_s
        self._check = check

    def connect(self, peer: int, endpoint: Endpoint) -> tuple[dict[int, socket.socket], float]:
        """Open all streams to one peer; return them by number, and the round trip."""
        streams: dict[int, socket.socket] = {}
        try:
            streams[0], round_trip_s = self._open(peer, endpoint, endpoint.candidates(self._network), 0, 0)
            num_streams = self._num_streams or streams_between(round_trip_s)
            address = streams[0].getpeername()[0]
            for number in range(1, num_streams + 1):
                streams[number], _ = self._open(peer, endpoint, [address], number, num_streams)
            streams[0].sendall(DONE)
        except BaseException as error:
            for sock in streams.values():
                sock.close()
            if isinstance(error, OSError):
                raise CommError(
                    f"rank {self._rank} lost its connection to rank {peer} during the rendezvous: {error}"
                ) from error
            raise
        return streams, round_trip_s

    def _open(
        self, peer: int, endpoint: Endpoint, addresses: list[str], number: int, num_streams: int
    ) -> tuple[socket.socket, float]:
        """Open one stream, until the peer has settled it; return it and the round trip."""
        failures: dict[str, None] = {}
        attempt = 0
        while time.monotonic() < self._deadline_s:
            for address in addresses:
                self._check()
                hello = Hello.new(self._rank, number, num_streams, attempt)
                attempt += 1
                try:
                    return self._shake_hands(address, endpoint, hello)
                except (OSError, UnicodeError) as error:
                    failures[f"{address}: {error}"] = None
            self._check()
            time.sleep(max(0.0, min(_TICK_S, _left_s(self._deadline_s))))
        raise CommError(
            f"rank {self._rank} cannot connect to rank {peer} ({'; '.join(failures)}); if ranks cannot reach each "
            "other, use the transport `store`; if they can at another address, give each rank its `address`"
        )

    def _shake_hands(self, address: str, endpoint: Endpoint, hello: Hello) -> tuple[socket.socket, float]:
        secret = bytes.fromhex(endpoint.secret)
        deadline_s = min(time.monotonic() + _ATTEMPT_S, self._deadline_s)
        sock = socket.create_connection((address, endpoint.port), min(_CONNECT_S, max(0.001, _left_s(deadline_s))))
        try:
            prepare(sock)
            data = hello.pack(secret)
            answer, welcome_s = self._ask(sock, data, WELCOME_BYTES, deadline_s)
            if not is_welcome(answer, secret, data):
                raise ConnectionError("the answer came from a process that does not know the secret")
            settled, settled_s = self._ask(sock, confirm(secret, data, answer), len(SETTLED), deadline_s)
            if settled != SETTLED:
                raise ConnectionError("it did not settle the connection")
        except BaseException:
            sock.close()
            raise
        return sock, min(welcome_s, settled_s)

    def _ask(self, sock: socket.socket, question: bytes, num_bytes: int, deadline_s: float) -> tuple[bytes, float]:
        """Send a message and read an answer of this size; return the answer and how long it took."""
        began_s = time.monotonic()
        sock.sendall(question)
        data = bytearray()
        while len(data) < num_bytes:
            self._check()
            left_s = _left_s(deadline_s)
            if left_s <= 0:
                raise TimeoutError("it did not answer in time")
            sock.settimeout(min(_TICK_S, left_s))
            try:
                more = sock.recv(num_bytes - len(data))
            except TimeoutError:
                continue
            if not more:
                raise ConnectionError("it closed the connection")
            data += more
        return bytes(data), time.monotonic() - began_s


def _left_s(deadline_s: float) -> float:
    return deadline_s - time.monotonic()
