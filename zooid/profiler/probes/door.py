"""How members connect to each other for a measurement: each listens, and lets in whoever knows its secret."""

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
_MOST_AT_ONCE = 256
"""Connections that may be saying hello at the same time; others are turned away."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""Closing drops what is still on its way: it would hold up the next measurement."""


class Purpose(NamedTuple):
    """What a connection is for."""

    meeting: int
    flow_number: int


ONLY_TO_TRY = Purpose(0, 0)


class Address(Record, frozen=True, kw_only=True):
    """What others need to connect to a member."""

    hosts: tuple[str, ...]
    port: int
    secret: str
    network: str
    """Equal where both share a loopback interface."""

    def __post_init__(self) -> None:
        require(0 < self.port < 2**16, f"`port` is {self.port}; it must be from 1 to 65535")
        require(bool(_SECRET.fullmatch(self.secret)), "`secret` must be 64 hexadecimal digits")


class Door:
    """Where one member listens, in a thread of its own."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._listener = socket.create_server(("", 0), backlog=256)
        self._listener.settimeout(_TICK_S)
        self._changed = threading.Condition()
        self._inside: defaultdict[Purpose, list[socket.socket]] = defaultdict(list)
        self._is_closed = False
        self._free_places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        threading.Thread(target=self._let_in, name="zooid-door", daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(
            hosts=tuple(own_addresses()),
            port=self._listener.getsockname()[1],
            secret=self._secret.hex(),
            network=own_network(),
        )

    def accept(self, purpose: Purpose, num_streams: int, name: str, timeout_s: float) -> list[socket.socket]:
        """The connections of a member that comes for this purpose, when all of them are here."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._inside[purpose]) == num_streams, timeout_s):
                raise CommTimeout(f"member {name} did not connect within {timeout_s:g} s: it is late or lost")
            return self._inside.pop(purpose)

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()

    def _let_in(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):  # nobody came, somebody left at once, or the door was closed
                sock, _ = self._listener.accept()
                if self._free_places.acquire(blocking=False):
                    threading.Thread(target=self._hear, args=(sock,), name="zooid-hello", daemon=True).start()
                else:
                    sock.close()

    def _hear(self, sock: socket.socket) -> None:
        """Take one hello beside others: whoever says nothing holds up nobody."""
        try:
            self._admit(sock)
        finally:
            self._free_places.release()

    def _admit(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(_CONNECT_TIMEOUT_S)
            secret, *numbers = _HELLO.unpack(_receive_exactly(sock, _HELLO.size))
            if not hmac.compare_digest(secret, self._secret):
                raise ConnectionError("a stranger")
            sock.sendall(_WELCOME)
        except OSError:
            sock.close()
            return
        purpose = Purpose(*numbers)
        if purpose == ONLY_TO_TRY:
            sock.close()
            return
        _prepare(sock)
        with self._changed:
            self._inside[purpose].append(sock)
            self._changed.notify_all()


def find_host(address: Address) -> tuple[str, str]:
    """The host under which a member can be reached, or an empty one and why there is none."""
    hosts = ("127.0.0.1", *address.hosts) if address.network == own_network() else address.hosts
    failures = []
    for host in hosts:
        try:
            _open(address, host, ONLY_TO_TRY).close()
        except OSError as error:
            failures.append(f"{host}: {error.strerror or error}")
        else:
            return host, ""
    return "", "; ".join(failures) or "it has no address"


def connect(address: Address, host: str, purpose: Purpose, num_streams: int, name: str) -> list[socket.socket]:
    """Connections to a member that was reached before, opened at the same time."""
    with ThreadPoolExecutor(num_streams) as pool:
        opening = [pool.submit(_open, address, host, purpose) for _ in range(num_streams)]
    failures = [error for each in opening if (error := each.exception()) is not None]
    if not failures:
        return [each.result() for each in opening]
    for each in opening:
        if each.exception() is None:
            each.result().close()
    raise PeerLost(f"member {name} cannot be reached any more at {host}: {failures[0]}") from failures[0]


def _open(address: Address, host: str, purpose: Purpose) -> socket.socket:
    sock = socket.create_connection((host, address.port), _CONNECT_TIMEOUT_S)
    try:
        sock.sendall(_HELLO.pack(bytes.fromhex(address.secret), *purpose))
        if _receive_exactly(sock, len(_WELCOME)) != _WELCOME:
            raise ConnectionError("somebody else listens there")
    except BaseException:
        sock.close()
        raise
    _prepare(sock)
    return sock


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    data = b""
    while len(data) < num_bytes:
        more = sock.recv(num_bytes - len(data))
        if not more or time.monotonic() > deadline_s:
            raise ConnectionError("it closed the connection")
        data += more
    return data
