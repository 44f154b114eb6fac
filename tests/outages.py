"""A proxy before an HTTP server that can be made to fail: with errors, by refusing connections, or by silence."""

import select
import socket
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Literal

Kind = Literal["503", "refused", "silent"]
KINDS: tuple[Kind, ...] = ("503", "refused", "silent")

_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LOOK_S = 0.02
_PIECE_BYTES = 2**16


class FailingProxy:
    """Passes bytes on to a server on this machine, except during outages, whose victims it counts."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener: socket.socket | None = _listening(0)
        self._port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._kind: Kind | None = None
        self._coming: tuple[Kind, float] | None = None
        self._outage = 0
        self._is_closed = False
        self.victims: Counter[Kind] = Counter()
        """How many open connections were hit by outages of each kind; those that are refused cannot be counted."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def fail(self, kind: Kind, seconds: float) -> None:
        """Begin an outage with the next request, so that somebody is sure to meet it; it ends by itself."""
        with self._lock:
            assert not self.is_failing, "one outage at a time"
            self._coming = kind, seconds

    @property
    def is_failing(self) -> bool:
        """Whether an outage goes on, or is to come."""
        return self._kind is not None or self._coming is not None

    def _begin(self) -> None:
        with self._lock:
            if self._coming is None:
                return
            (self._kind, seconds), self._coming = self._coming, None
            self._outage += 1
            if self._kind == "refused" and self._listener is not None:
                self._listener.close()
                self._listener = None
        threading.Timer(seconds, self._recover).start()

    def _recover(self) -> None:
        with self._lock:
            if self._listener is None and not self._is_closed:
                self._listener = _listening(self._port)
            self._kind = None

    def __enter__(self) -> "FailingProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
            if self._listener is not None:
                self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            listener = self._listener
            try:
                if listener is None or not select.select([listener], [], [], _LOOK_S)[0]:
                    threading.Event().wait(_LOOK_S if listener is None else 0)
                    continue
                client, _ = listener.accept()
            except (OSError, ValueError):  # closed meanwhile
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            met: set[int] = set()
            is_dead = False  # bytes were swallowed: nothing sensible can follow on this connection
            while not self._is_closed:
                ready, _, _ = select.select([client, server], [], [], _LOOK_S)
                if client in ready:
                    self._begin()
                kind = self._kind
                if kind is not None and ready and self._outage not in met:
                    met.add(self._outage)
                    self.victims[kind] += 1
                if kind == "refused":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                    return
                for end in ready:
                    data = end.recv(_PIECE_BYTES)
                    if not data:
                        return
                    is_dead = is_dead or kind == "silent"
                    if is_dead:
                        continue
                    if kind == "503" and end is client:
                        client.sendall(_UNAVAILABLE)
                        return
                    (server if end is client else client).sendall(data)


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener
