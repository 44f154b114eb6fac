"""Connects one rank to the doors of others, and tries again until the group's own deadline."""

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
"""The time for one whole handshake. A peer whose machine stalls longer is connected to once more."""
_TICK_S = 0.05


class Dialer:
    """Opens the streams from one rank to ranks below it."""

    def __init__(
        self, rank: int, network: str, num_streams: int | None, deadline_s: float, check: Callable[[], None]
    ) -> None:
        self._rank = rank
        self._network = network
        self._num_streams = num_streams
        self._deadline_s = deadline_s
        self._check = check

    def connect(self, peer: int, point: Endpoint) -> tuple[dict[int, socket.socket], float]:
        """All streams to one peer, by their numbers, and the round trip."""
        streams: dict[int, socket.socket] = {}
        try:
            streams[0], round_trip_s = self._open(peer, point, point.candidates(self._network), 0, 0)
            num_streams = self._num_streams or streams_between(round_trip_s)
            address = streams[0].getpeername()[0]
            for number in range(1, num_streams + 1):
                streams[number], _ = self._open(peer, point, [address], number, num_streams)
            streams[0].sendall(DONE)
        except OSError as error:
            _close(streams)
            raise CommError(f"rank {self._rank} lost its connection to rank {peer} while they met: {error}") from error
        except BaseException:
            _close(streams)
            raise
        return streams, round_trip_s

    def _open(
        self, peer: int, point: Endpoint, addresses: list[str], number: int, num_streams: int
    ) -> tuple[socket.socket, float]:
        """One stream that the peer has settled, and the round trip."""
        failures: dict[str, None] = {}
        attempt = 0
        while time.monotonic() < self._deadline_s:
            for address in addresses:
                self._check()
                hello = Hello.new(self._rank, number, num_streams, attempt)
                attempt += 1
                try:
                    return self._shake_hands(address, point, hello)
                except (OSError, UnicodeError) as error:
                    failures[f"{address}: {error}"] = None
            self._pause()
        raise CommError(
            f"rank {self._rank} cannot connect to rank {peer} ({'; '.join(failures)}); if ranks do not reach each "
            "other, use the transport `store`, and if they do by another address, give each its `address`"
        )

    def _shake_hands(self, address: str, point: Endpoint, hello: Hello) -> tuple[socket.socket, float]:
        secret = bytes.fromhex(point.secret)
        deadline_s = min(time.monotonic() + _ATTEMPT_S, self._deadline_s)
        sock = socket.create_connection((address, point.port), min(_CONNECT_S, max(0.001, self._left_s(deadline_s))))
        try:
            prepare(sock)
            data = hello.pack(secret)
            answer, welcome_s = self._ask(sock, data, WELCOME_BYTES, deadline_s)
            if not is_welcome(answer, secret, data):
                raise ConnectionError("somebody else answered there, who does not know the secret")
            settled, settled_s = self._ask(sock, confirm(secret, data, answer), len(SETTLED), deadline_s)
            if settled != SETTLED:
                raise ConnectionError("it did not settle the connection")
        except BaseException:
            sock.close()
            raise
        return sock, min(welcome_s, settled_s)

    def _ask(self, sock: socket.socket, words: bytes, num_bytes: int, deadline_s: float) -> tuple[bytes, float]:
        """Say something, and read an answer of this size; how long it took."""
        began_s = time.monotonic()
        sock.sendall(words)
        data = bytearray()
        while len(data) < num_bytes:
            self._check()
            left_s = self._left_s(deadline_s)
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

    def _pause(self) -> None:
        self._check()
        time.sleep(max(0.0, min(_TICK_S, self._left_s(self._deadline_s))))

    def _left_s(self, deadline_s: float) -> float:
        return deadline_s - time.monotonic()


def _close(streams: dict[int, socket.socket]) -> None:
    for sock in streams.values():
        sock.close()
