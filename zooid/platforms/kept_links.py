"""Links that are opened when they are needed, kept, and opened again when they break."""

import threading
import time
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

from zooid.core.runs.member_records import Exit
from zooid.platforms.line_link import LineLink, Unreachable

_RETRY_S = 5.0
"""Seconds between two attempts to open a link."""
_LOST_S = 15.0
"""Seconds after which the members behind a link that cannot be opened count as lost."""

Place = TypeVar("Place", bound=Hashable)


class KeptLinks(Generic[Place]):
    """One link for each place: a machine, or the address of a cluster."""

    def __init__(self, open_link: Callable[[Place], LineLink]) -> None:
        """`open_link` opens the link to a place, or raises Unreachable."""
        self._open_link = open_link
        self._attempts: dict[Place, Future[LineLink]] = {}
        self._tried_s: dict[Place, float] = {}
        """When the last attempt began, by the monotonic clock."""
        self._silent_since_s: dict[Place, float] = {}
        """Since when a place is silent, by the monotonic clock."""
        self._lock = threading.Lock()

    def get(self, place: Place) -> LineLink:
        """Return the link to a place, and wait until it is open."""
        return self._attempt(place).result()

    def get_now(self, place: Place) -> LineLink:
        """Return the link to a place if it is open; otherwise open it in the background, and raise Unreachable."""
        attempt = self._attempt(place)
        if not attempt.done():
            raise Unreachable("the connection is not open yet")
        return attempt.result()

    def is_silent(self, place: Place) -> bool:
        """Whether the last attempt to reach a place has failed."""
        return place in self._silent_since_s

    def lost(self, place: Place, error: Unreachable) -> Exit | None:
        """Return the exit of the members of a place that cannot be reached; None as long as it may come back."""
        since_s = self._silent_since_s.get(place, time.monotonic())
        if time.monotonic() - since_s < _LOST_S:
            return None
        return Exit(None, reason=f"is lost with its machine: {error}", is_assumed=True)

    def together(self, work: Callable[[Place], None], places: Collection[Place]) -> None:
        """Do the same work for several places at the same time."""
        if places:
            with ThreadPoolExecutor(len(places)) as pool:
                list(pool.map(work, places))

    def close(self) -> None:
        """Close all links; members live on."""
        with self._lock:
            attempts = list(self._attempts.values())
            self._attempts.clear()
        for attempt in attempts:
            with suppress(Unreachable):
                attempt.result().close()

    def _attempt(self, place: Place) -> Future[LineLink]:
        """Return the last attempt to open a link, or a new one if that has failed some time ago."""
        with self._lock:
            last = self._attempts.get(place)
            if last is not None and (not last.done() or (last.exception() is None and last.result().is_open)):
                return last
            now_s = time.monotonic()
            if last is not None:
                self._silent_since_s.setdefault(place, now_s)
                if last.exception() is None:
                    last = self._attempts[place] = _ended(last.result())
                if now_s - self._tried_s[place] < _RETRY_S:
                    return last
            attempt = self._attempts[place] = Future()
            self._tried_s[place] = now_s
        threading.Thread(target=self._open, args=(place, attempt), daemon=True).start()
        return attempt

    def _open(self, place: Place, attempt: "Future[LineLink]") -> None:
        try:
            link = self._open_link(place)
        except Exception as error:  # noqa: BLE001  # whoever asks for the link gets it
            self._silent_since_s.setdefault(place, time.monotonic())
            attempt.set_exception(error)
            return
        self._silent_since_s.pop(place, None)
        attempt.set_result(link)


def _ended(link: LineLink) -> "Future[LineLink]":
    """Return a failed attempt that replaces a link which was open and has broken."""
    failed: Future[LineLink] = Future()
    failed.set_exception(link.broken())
    link.close()
    return failed
