"""One thread per process that serves all sockets of all groups."""

import os
import select
import threading
from typing import Protocol


class Served(Protocol):
    """A socket with someone to serve it."""

    def fileno(self) -> int: ...

    def on_events(self, readable: bool, writable: bool) -> None:
        """Called by the loop's thread; raises nothing."""


class Loop:
    """Waits for all sockets at once; what is served may be changed from any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._served: dict[int, Served] = {}
        threading.Thread(target=self._run, name="zooid-sockets", daemon=True).start()

    def add(self, served: Served) -> None:
        self._served[served.fileno()] = served
        self._epoll.register(served.fileno(), select.EPOLLIN)

    def watch(self, served: Served, *, reading: bool, writing: bool) -> None:
        """Which events to wait for; that the other end is gone is always among them."""
        events = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0)
        self._epoll.modify(served.fileno(), events)

    def remove(self, served: Served) -> None:
        if self._served.pop(served.fileno(), None) is not None:
            self._epoll.unregister(served.fileno())

    def _run(self) -> None:
        while True:
            for descriptor, events in self._epoll.poll():
                served = self._served.get(descriptor)
                if served is None:
                    continue
                served.on_events(bool(events & ~select.EPOLLOUT), bool(events & select.EPOLLOUT))


_lock = threading.Lock()
_loop: tuple[int, Loop] | None = None


def process_loop() -> Loop:
    """The loop of this process; a forked child gets its own."""
    global _loop
    with _lock:
        if _loop is None or _loop[0] != os.getpid():
            _loop = (os.getpid(), Loop())
        return _loop[1]
