"""The one thread per process that serves all sockets of all groups. A failing socket does not end it."""

import contextlib
import logging
import os
import select
import threading
import time
from typing import Protocol

logger = logging.getLogger(__name__)

_PAUSE_S = 0.1
"""The pause after a failed poll, so that a lasting failure does not occupy a core."""


class Served(Protocol):
    """A socket with its event handlers."""

    def fileno(self) -> int: ...

    def on_events(self, readable: bool, writable: bool) -> None:
        """Handle events, on the loop's thread."""

    def abandon(self, error: BaseException) -> None:
        """Close the socket for good, because `on_events` raised."""


class Loop:
    """Polls all sockets at once. Sockets may be added and removed from any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._served: dict[int, Served] = {}
        threading.Thread(target=self._run, name="zooid-sockets", daemon=True).start()

    def add(self, served: Served) -> None:
        self._served[served.fileno()] = served
        self._epoll.register(served.fileno(), select.EPOLLIN)

    def watch(self, served: Served, *, writing: bool) -> None:
        """Set whether to poll the socket for writing; it is always polled for reading."""
        self._epoll.modify(served.fileno(), select.EPOLLIN | (select.EPOLLOUT if writing else 0))

    def remove(self, served: Served) -> None:
        self._remove(served.fileno())

    def _run(self) -> None:
        while True:
            try:
                ready = self._epoll.poll()
            except OSError:
                logger.exception("polling sockets failed; it is retried")
                time.sleep(_PAUSE_S)
                continue
            for descriptor, events in ready:
                served = self._served.get(descriptor)
                if served is not None:
                    self._serve(descriptor, served, events)

    def _serve(self, descriptor: int, served: Served, events: int) -> None:
        try:
            served.on_events(bool(events & ~select.EPOLLOUT), bool(events & select.EPOLLOUT))
        except BaseException as error:  # it concerns this socket, and the thread serves all the others
            with contextlib.suppress(BaseException):
                logger.exception("a socket is closed because serving it failed")
            try:
                served.abandon(error)
            except BaseException:  # as above
                with contextlib.suppress(BaseException):
                    self._remove(descriptor)
                with contextlib.suppress(BaseException):
                    logger.exception("closing a socket failed")

    def _remove(self, descriptor: int) -> None:
        if self._served.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)


_lock = threading.Lock()
_loop: tuple[int, Loop] | None = None


def process_loop() -> Loop:
    """Return the loop of this process; a forked child gets its own."""
    global _loop
    with _lock:
        if _loop is None or _loop[0] != os.getpid():
            _loop = (os.getpid(), Loop())
        return _loop[1]
