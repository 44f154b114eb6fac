"""Fences: a newer claim ends the work under all earlier claims, which must change nothing any more.

A claim that adopts members is a fence for coordinators only.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from zooid.core.abort import Abort
from zooid.core.errors import ObjectNotFound, RecordError, StoreError, Superseded
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import Adoption
from zooid.core.runs.store_rules import FENCE_FRESH_S, FENCE_LOOK_S
from zooid.store.store_protocol import ObjectStore

logger = logging.getLogger(__name__)

_HEED_S = 1.0
"""Seconds between setting the abort flag and ending the process."""
GRACE_S = FENCE_LOOK_S + FENCE_FRESH_S + _HEED_S
"""Seconds after a newer claim until everybody who can reach the store has stopped."""


class Fence:
    """Looks for a newer claim than one's own; claim numbers have no gaps, so one request is enough."""

    def __init__(self, store: ObjectStore, number: int, *, coordinates: bool = False) -> None:
        """`number` is the number of one's own claim, which for a member is also that of the roster.

        A member continues when it is adopted. A coordinator (`coordinates`) is replaced by every newer claim.
        """
        self._store = store
        self._number = number
        self._coordinates = coordinates
        self._next = number + 1
        """The number of the next claim to look for."""
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._is_superseded = False

    def check(self) -> None:
        """Raise Superseded if there is a newer claim, as of a moment ago."""
        if self.is_superseded():
            raise self.error()

    def is_superseded(self) -> bool:
        """Whether there is a newer claim, as of a moment ago."""
        with self._lock:
            asked_s = time.monotonic()
            if not self._is_superseded and (self._looked_s is None or asked_s - self._looked_s >= FENCE_FRESH_S):
                self._is_superseded = self._look()
                self._looked_s = asked_s  # when the request began: the answer may be as old as that
            return self._is_superseded

    def error(self) -> Superseded:
        """The error to raise if there is a newer claim."""
        return Superseded(
            f"another coordinator has taken over the run in {self._store.url}: {keys.claim(self._next)} "
            f"replaces claim {self._number}; this process ends, and changes nothing any more"
        )

    @contextmanager
    def watched(
        self, abort: Abort, end: Callable[[], None], on_look: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Look at once, and every few seconds inside the context; set `abort` when there is a newer claim.

        `end` ends the process if it does not react to `abort` because it is busy in foreign code. `on_look` is called
        after every look that has found no newer claim, and may raise StoreError.
        """
        self.check()
        ending = threading.Event()

        def watch() -> None:
            while not ending.wait(FENCE_LOOK_S):
                try:
                    if self.is_superseded():
                        logger.warning("%s", self.error())
                        abort.set(str(self.error()))
                        if not ending.wait(_HEED_S):
                            end()
                        return
                    on_look()
                except StoreError as error:
                    logger.warning("the look for a newer claim or a request failed, and will be repeated: %s", error)

        thread = threading.Thread(target=watch, name="fence", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()

    def _look(self) -> bool:
        while True:
            try:
                data = bytes(self._store.get(keys.claim(self._next)))
            except ObjectNotFound:
                return False
            if self._coordinates or not self._adopts_member(data):
                return True
            self._next += 1

    def _adopts_member(self, data: bytes) -> bool:
        """Whether a claim adopts this member; an unreadable claim does not."""
        with suppress(RecordError):
            return decode_record(data, Adoption, "a claim").roster == self._number
        return False
