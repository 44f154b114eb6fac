"""Lets the ranks of a group in, and keeps everyone else from doing harm.

One thread serves all connections at once. A stranger is whoever has not shown yet that it knows the secret: it has one
deadline for its whole hello, and only so many strangers may stand at the door; the one that has stood there longest has
to go first. A rank that has shown it may take as long as the group has, since its machine may be busy.
"""

import contextlib
import logging
import selectors
import socket
import time
from collections import defaultdict
from collections.abc import Callable

from zooid.comm.tcp.handshake import (
    CONFIRM_BYTES,
    DONE,
    HELLO_BYTES,
    SETTLED,
    Hello,
    is_confirm,
    welcome,
)
from zooid.comm.tcp.sockets import prepare
from zooid.core.errors import CommTimeout, DamagedMessage

logger = logging.getLogger(__name__)

_HELLO_S = 10.0
"""A stranger's deadline for its whole hello."""
_MAX_STRANGERS = 256
_MAX_ACCEPTED_AT_ONCE = 64
"""After so many new connections, those that are there already get their turn."""
_TICK_S = 0.05
_PAUSE_S = 0.05
"""A pause while the process has no file descriptors left."""


class _Guest:
    """A connection at the door, and how far it has come."""

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
        """Size of what it has to say next."""
        if self.hello is None:
            return HELLO_BYTES
        return len(DONE) if self.has_confirmed else CONFIRM_BYTES


class Admission:
    """Admits ranks `rank + 1` to `size - 1` at a listener."""

    def __init__(self, listener: socket.socket, secret: bytes, rank: int, size: int) -> None:
        self._listener = listener
        self._secret = secret
        self._rank = rank
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[_Guest, None] = {}
        """Connections without a hello, the oldest first."""
        self._known: dict[tuple[int, int], _Guest] = {}
        """The latest connection of each stream, by the rank and the number of the stream."""
        self._missing = set(range(rank + 1, size))
        """Ranks that have not said that they have all of their streams."""

    def admit_all(self, deadline_s: float, timeout_s: float, check: Callable[[], None]) -> None:
        """Serve the door until all ranks are in; `check` raises when they are not waited for any more."""
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
                self._turn_away_late()
        finally:
            self._listener.close()
            self._selector.close()
            for stranger in self._strangers:
                stranger.socket.close()

    def streams(self) -> dict[int, dict[int, socket.socket]]:
        """The streams of every rank that came, by their numbers."""
        streams: defaultdict[int, dict[int, socket.socket]] = defaultdict(dict)
        for (rank, number), guest in self._known.items():
            if guest.has_confirmed:
                streams[rank][number] = guest.socket
            else:  # its rank is done without it
                guest.socket.close()
        return dict(streams)

    def close(self) -> None:
        """Close every connection; for a meeting that failed."""
        self._listener.close()
        for guest in self._known.values():
            guest.socket.close()

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # most likely, the process may open no more files
                logger.warning("a connection could not be accepted: %s", error)
                self._turn_away_oldest()
                time.sleep(_PAUSE_S)
                return
            if len(self._strangers) >= _MAX_STRANGERS:
                self._turn_away_oldest()
            sock.setblocking(False)
            guest = _Guest(sock, time.monotonic() + _HELLO_S)
            self._strangers[guest] = None
            self._selector.register(sock, selectors.EVENT_READ, guest)
            self._serve(guest)  # its hello is often there already

    def _serve(self, guest: _Guest) -> None:
        try:
            if guest.socket.fileno() >= 0 and self._read(guest):
                self._advance(guest)
        except BlockingIOError:
            pass
        except (OSError, DamagedMessage) as error:
            logger.debug("a connection is turned away: %s", error)
            self._turn_away(guest)

    def _read(self, guest: _Guest) -> bool:
        """Read what the guest says; whether it has said all that is expected next, beyond which nothing is read."""
        data = guest.socket.recv(guest.num_expected - len(guest.data))
        if not data:
            raise ConnectionError("it hung up")
        guest.data += data
        return len(guest.data) == guest.num_expected

    def _advance(self, guest: _Guest) -> None:
        said = bytes(guest.data)
        guest.data.clear()
        if guest.hello is None:
            self._on_hello(guest, said)
        elif not guest.has_confirmed:
            self._on_confirm(guest, guest.hello, said)
        elif said == DONE and self._is_complete(guest.hello.rank):
            self._missing.discard(guest.hello.rank)
            self._selector.unregister(guest.socket)  # frames come next, which are not for the door
        else:
            raise DamagedMessage("it said that it has all of its streams, but not all are here")

    def _is_complete(self, rank: int) -> bool:
        """Whether all streams of a rank are here; how many they are is known from any but the first."""
        present = {
            guest.hello.number: guest.hello.num_streams
            for guest in self._known.values()
            if guest.hello is not None and guest.hello.rank == rank and guest.has_confirmed
        }
        return set(present) == set(range(1 + max([1, *present.values()])))

    def _on_hello(self, guest: _Guest, said: bytes) -> None:
        hello = Hello.unpack(said, self._secret)
        if hello.rank not in self._missing:
            raise DamagedMessage(f"rank {hello.rank} is not awaited")
        before = self._known.get((hello.rank, hello.number))
        if before is not None and before.hello is not None and before.hello.attempt >= hello.attempt:
            raise DamagedMessage(f"stream {hello.number} of rank {hello.rank} has a later connection")
        if before is not None:
            self._turn_away(before)
        self._strangers.pop(guest)
        self._known[hello.rank, hello.number] = guest
        guest.hello, guest.hello_data, guest.welcome = hello, said, welcome(self._secret, said)
        prepare(guest.socket)
        _say(guest.socket, guest.welcome)

    def _on_confirm(self, guest: _Guest, hello: Hello, said: bytes) -> None:
        if not is_confirm(said, self._secret, guest.hello_data, guest.welcome):
            raise DamagedMessage("a welcome was confirmed by somebody who does not know the secret")
        guest.has_confirmed = True
        _say(guest.socket, SETTLED)
        if hello.number > 0:
            self._selector.unregister(guest.socket)

    def _turn_away_late(self) -> None:
        now_s = time.monotonic()
        for guest in [guest for guest in self._strangers if guest.deadline_s < now_s]:
            self._turn_away(guest)

    def _turn_away_oldest(self) -> None:
        if self._strangers:
            self._turn_away(next(iter(self._strangers)))

    def _turn_away(self, guest: _Guest) -> None:
        """Close a connection without a word."""
        self._strangers.pop(guest, None)
        if guest.hello is not None and self._known.get((guest.hello.rank, guest.hello.number)) is guest:
            del self._known[guest.hello.rank, guest.hello.number]
        with contextlib.suppress(KeyError, ValueError):  # the door does not listen to it any more
            self._selector.unregister(guest.socket)
        guest.socket.close()


def _say(sock: socket.socket, words: bytes) -> None:
    if sock.send(words) != len(words):  # it takes far more, unless something is wrong with it
        raise ConnectionError("it takes no answer")
