"""Socket settings: where sockets listen, and how they notice that the other end is gone."""

import socket

from zooid.comm.group_options import Options
from zooid.core.errors import InputError
from zooid.core.resources.addresses import own_addresses

_BACKLOG = 1024
"""Number of connections that may wait to be accepted, so large that strangers do not keep the group's ranks out."""
_NOT_SENT_BYTES = 2**17
"""Number of bytes that a socket accepts beyond what the network takes."""
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 11_000))
"""These notice a vanished machine after 11 s, whether data are sent to it or not."""


def listen(options: Options) -> socket.socket:
    """Open a listener at the address in the options, or at all of the machine's addresses."""
    name = "listen" if options.listen else "address"
    host = options.listen or options.address
    if host is None:
        return socket.create_server(("", 0), backlog=_BACKLOG)
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(where[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"`{name}` is {host!r}, but this machine cannot listen there ({error}); give one of its own addresses "
            f"({', '.join(own_addresses()) or '127.0.0.1'}), or, where the network translates `address`, add "
            "`listen=0.0.0.0`"
        ) from error


def prepare(sock: socket.socket) -> None:
    """Set the options that make a connection fast and its loss noticeable."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # so that data which left this process are in flight, not in a buffer
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_loopback(sock: socket.socket) -> bool:
    """Return whether the other end is a process of this machine, reached without any network."""
    address = str(sock.getpeername()[0])
    return address.startswith("127.") or address == "::1"
