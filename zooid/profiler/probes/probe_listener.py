"""Connections between members for a measurement: each member listens, and admits peers that know its secret."""

import contextlib
import hmac
import re
import secrets
import socket
import struct
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from zooid.core.errors import CommTimeout, PeerLost
from zooid.core.records import Record, require
from zooid.core.resources.addresses import own_addresses, own_network

_HELLO = struct.Struct("<32sII")
_SECRET = re.compile("[0-9a-f]{64}")
_WELCOME = b"zooid-ok"
_CONNECT_TIMEOUT_S = 3.0
_TICK_S = 0.2
_MAX_HANDSHAKES = 256
"""Largest number of concurrent handshakes; further connections are closed."""
_NO_LINGER = struct.pack("ii", 1, 0)
"""Socket option with which closing drops unsent bytes, which would delay the next measurement."""


class Purpose(NamedTuple):
    """The measurement and the flow that a connection is for."""

    measurement: int
    flow_number: int


TRIAL = Purpose(0, 0)
"""The purpose of a connection that only tests whether a member can be reached."""


class Address(Record, frozen=True, kw_only=True):
    """Everything that peers need to connect to a member."""

    hosts: tuple[str, ...]
    port: int
    secret: str
    network: str
    """Identifies the network namespace; equal for members that share a loopback interface."""

    def __post_init__(self) -> None:
        require(0 < self.port < 2**16, f"`port` is {self.port}; it must be from 1 to 65535")
        require(bool(_SECRET.fullmatch(self.secret)), "`secret` must be 64 hexadecimal digits")


class ProbeListener:
    """Listens for the peers of one member, in a thread of its own."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._server = socket.create_server(("", 0), backlog=256)
        self._server.settimeout(_TICK_S)
        self._changed = threading.Condition()
        self._admitted: defaultdict[Purpose, list[socket.socket]] = defaultdict(list)
        self._is_closed = False
        self._free_handshakes = threading.BoundedSemaphore(_MAX_HANDSHAKES)
        threading.Thread(target=self._listen, name="zooid-listener", daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(
            hosts=tuple(own_addresses()),
            port=self._server.getsockname()[1],
            secret=self._secret.hex(),
            network=own_network(),
        )

    def accept(self, purpose: Purpose, num_streams: int, name: str, timeout_s: float) -> list[socket.socket]:
        """Wait for all connections that the named member opens for this purpose, and return them."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._admitted[purpose]) == num_streams, timeout_s):
                raise CommTimeout(f"member {name} did not connect within {timeout_s:g} s: it is late or lost")
            return self._admitted.pop(purpose)

    def close(self) -> None:
        self._is_closed = True
        self._server.close()

    def _listen(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):  # the tick passed, the peer left at once, or the server was closed
                sock, _ = self._server.accept()
                if self._free_handshakes.acquire(blocking=False):
                    # In a thread of its own, so that a silent peer delays nobody else.
                    threading.Thread(target=self._admit, args=(sock,), name="zooid-hello", daemon=True).start()
                else:
                    sock.close()

    def _admit(self, sock: socket.socket) -> None:
        """Keep a connection if its peer knows the secret."""
        try:
            sock.settimeout(_CONNECT_TIMEOUT_S)
            secret, *numbers = _HELLO.unpack(_receive_exactly(sock, _HELLO.size))
            if not hmac.compare_digest(secret, self._secret):
                raise ConnectionError("wrong secret")
            sock.sendall(_WELCOME)
        except OSError:
            sock.close()
            return
        finally:
            self._free_handshakes.release()
        purpose = Purpose(*numbers)
        if purpose == TRIAL:
            sock.close()
            return
        _prepare(sock)
        with self._changed:
            self._admitted[purpose].append(sock)
            self._changed.notify_all()


def find_host(address: Address) -> tuple[str, str]:
    """Return the host at which a member can be reached and "", or "" and the reason why there is none."""
    hosts = ("127.0.0.1", *address.hosts) if address.network == own_network() else address.hosts
    failures = []
    for host in hosts:
        try:
            _open(address, host, TRIAL).close()
        except OSError as error:
            failures.append(f"{host}: {error.strerror or error}")
        else:
            return host, ""
    return "", "; ".join(failures) or "it has no address"


def connect(address: Address, host: str, purpose: Purpose, num_streams: int, name: str) -> list[socket.socket]:
    """Open several connections at the same time to a member that was reached before."""
    with ThreadPoolExecutor(num_streams) as pool:
        attempts = [pool.submit(_open, address, host, purpose) for _ in range(num_streams)]
    failures = [error for attempt in attempts if (error := attempt.exception()) is not None]
    opened = [attempt.result() for attempt in attempts if attempt.exception() is None]
    if not failures:
        return opened
    for sock in opened:
        sock.close()
    raise PeerLost(f"member {name} cannot be reached any more at {host}: {failures[0]}") from failures[0]


def _open(address: Address, host: str, purpose: Purpose) -> socket.socket:
    sock = socket.create_connection((host, address.port), _CONNECT_TIMEOUT_S)
    try:
        sock.sendall(_HELLO.pack(bytes.fromhex(address.secret), *purpose))
        if _receive_exactly(sock, len(_WELCOME)) != _WELCOME:
            raise ConnectionError("another program listens there")
    except BaseException:
        sock.close()
        raise
    _prepare(sock)
    return sock


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    data = b""
    while len(data) < num_bytes:
        more = sock.recv(num_bytes - len(data))
        if not more or time.monotonic() > deadline_s:
            raise ConnectionError("it closed the connection")
        data += more
    return data
