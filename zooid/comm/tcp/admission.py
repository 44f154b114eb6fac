"""Admits the ranks of a group at a listener, and rejects all others.

One thread serves all connections at once. A stranger is a connection that has not proved yet that it knows the secret.
It has one deadline for its whole hello, and the number of strangers is limited: the oldest is rejected first. A rank
that has proved it has the group's whole timeout, since its machine may be busy.
"""

import contextlib
import logging
import selectors
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from zooid.comm.tcp.handshake import CONFIRM_BYTES, DONE, HELLO_BYTES, SETTLED, Hello, is_confirm, welcome
from zooid.comm.tcp.sockets import prepare
from zooid.core.errors import CommTimeout, DamagedMessage

logger = logging.getLogger(__name__)

_HELLO_S = 10.0
"""A stranger's deadline for its whole hello."""
_MAX_STRANGERS = 256
_MAX_ACCEPTED_AT_ONCE = 64
"""After so many new connections, the open ones get their turn."""
_TICK_S = 0.05
_PAUSE_S = 0.05
"""The pause when the process has no file descriptors left."""


class _Handshake:
    """The handshake of one incoming connection, so far."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self.socket = sock
        self.deadline_s = deadline_s
        self.data = bytearray()
        self.hello: Hello | None = None
        self.hello_data = b""
        self.welcome = b""
        self.has_confirmed = False

    @property
    def num_expected(self) -> int:
        """Size of the next message of the other side."""
        if self.hello is None:
            return HELLO_BYTES
        return len(DONE) if self.has_confirmed else CONFIRM_BYTES


class Admission:
    """Admits ranks at a listener."""

    def __init__(self, listener: socket.socket, secret: bytes, rank: int, admitted: Iterable[int]) -> None:
        """`rank` is the one that listens."""
        self._listener = listener
        self._secret = secret
        self._rank = rank
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[_Handshake, None] = {}
        """Connections without a hello, the oldest first."""
        self._known: dict[tuple[int, int], _Handshake] = {}
        """The latest connection of each stream, by rank and stream number."""
        self._missing = set(admitted)
        """Ranks that have not confirmed all of their streams."""

    def admit_all(self, deadline_s: float, timeout_s: float, check: Callable[[], None]) -> None:
        """Serve the listener until all ranks are admitted; `check` raises when the rendezvous is over."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._missing:
                check()
                if time.monotonic() > deadline_s:
                    names = ", ".join(map(str, sorted(self._missing)))
                    raise CommTimeout(f"ranks {names} did not connect to rank {self._rank} in {timeout_s:g} s")
                for key, _ in self._selector.select(_TICK_S):
                    if key.data is None:
                        self._accept()
                    else:
                        self._serve(key.data)
                self._reject_late()
        finally:
            self._listener.close()
            self._selector.close()
            for stranger in self._strangers:
                stranger.socket.close()

    def streams(self) -> dict[int, dict[int, socket.socket]]:
        """Return the sockets of all admitted ranks, by rank and stream number."""
        streams: defaultdict[int, dict[int, socket.socket]] = defaultdict(dict)
        for (rank, number), handshake in self._known.items():
            if handshake.has_confirmed:
                streams[rank][number] = handshake.socket
            else:  # its rank has all of its streams without this one
                handshake.socket.close()
        return dict(streams)

    def close(self) -> None:
        """Close every connection after a failed rendezvous."""
        self._listener.close()
        for handshake in self._known.values():
            handshake.socket.close()

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # most likely, the process may open no more files
                logger.warning("a connection could not be accepted: %s", error)
                self._reject_oldest()
                time.sleep(_PAUSE_S)
                return
            if len(self._strangers) >= _MAX_STRANGERS:
                self._reject_oldest()
            sock.setblocking(False)
            handshake = _Handshake(sock, time.monotonic() + _HELLO_S)
            self._strangers[handshake] = None
            self._selector.register(sock, selectors.EVENT_READ, handshake)
            self._serve(handshake)  # its hello is often there already

    def _serve(self, handshake: _Handshake) -> None:
        try:
            if handshake.socket.fileno() < 0:
                return
            data = handshake.socket.recv(handshake.num_expected - len(handshake.data))
            if not data:
                raise ConnectionError("it closed the connection")
            handshake.data += data
            if len(handshake.data) == handshake.num_expected:
                self._advance(handshake)
        except BlockingIOError:
            pass
        except (OSError, DamagedMessage) as error:
            logger.debug("a connection is rejected: %s", error)
            self._reject(handshake)

    def _advance(self, handshake: _Handshake) -> None:
        message = bytes(handshake.data)
        handshake.data.clear()
        if handshake.hello is None:
            self._on_hello(handshake, message)
        elif not handshake.has_confirmed:
            self._on_confirm(handshake, handshake.hello, message)
        elif message == DONE and self._is_complete(handshake.hello.rank):
            self._missing.discard(handshake.hello.rank)
            self._selector.unregister(handshake.socket)  # frames come next, which are not read here
        else:
            raise DamagedMessage("it said that it has all of its streams, but not all are here")

    def _is_complete(self, rank: int) -> bool:
        """Return whether all streams of a rank are here; every stream but the first states their number."""
        present = {
            handshake.hello.number: handshake.hello.num_streams
            for handshake in self._known.values()
            if handshake.hello is not None and handshake.hello.rank == rank and handshake.has_confirmed
        }
        return set(present) == set(range(1 + max([1, *present.values()])))

    def _on_hello(self, handshake: _Handshake, data: bytes) -> None:
        hello = Hello.unpack(data, self._secret)
        if hello.rank not in self._missing:
            raise DamagedMessage(f"rank {hello.rank} is not awaited")
        earlier = self._known.get((hello.rank, hello.number))
        if earlier is not None and earlier.hello is not None and earlier.hello.attempt >= hello.attempt:
            raise DamagedMessage(f"stream {hello.number} of rank {hello.rank} has a later connection")
        if earlier is not None:
            self._reject(earlier)
        self._strangers.pop(handshake)
        self._known[hello.rank, hello.number] = handshake
        handshake.hello, handshake.hello_data, handshake.welcome = hello, data, welcome(self._secret, data)
        prepare(handshake.socket)
        _reply(handshake.socket, handshake.welcome)

    def _on_confirm(self, handshake: _Handshake, hello: Hello, data: bytes) -> None:
        if not is_confirm(data, self._secret, handshake.hello_data, handshake.welcome):
            raise DamagedMessage("a welcome was confirmed without knowledge of the secret")
        handshake.has_confirmed = True
        _reply(handshake.socket, SETTLED)
        if hello.number > 0:
            self._selector.unregister(handshake.socket)

    def _reject_late(self) -> None:
        now_s = time.monotonic()
        for handshake in [handshake for handshake in self._strangers if handshake.deadline_s < now_s]:
            self._reject(handshake)

    def _reject_oldest(self) -> None:
        if self._strangers:
            self._reject(next(iter(self._strangers)))

    def _reject(self, handshake: _Handshake) -> None:
        """Close a connection without an answer."""
        self._strangers.pop(handshake, None)
        if handshake.hello is not None and self._known.get((handshake.hello.rank, handshake.hello.number)) is handshake:
            del self._known[handshake.hello.rank, handshake.hello.number]
        with contextlib.suppress(KeyError, ValueError):  # it is not watched any more
            self._selector.unregister(handshake.socket)
        handshake.socket.close()


def _reply(sock: socket.socket, answer: bytes) -> None:
    if sock.send(answer) != len(answer):  # a working socket takes far more
        raise ConnectionError("it takes no answer")
