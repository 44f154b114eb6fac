"""The newest claim is a fence: whoever works under an earlier one must end, and must not change anything any more.

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
"""Between setting the flag and ending the process."""
GRACE_S = FENCE_LOOK_S + FENCE_FRESH_S + _HEED_S
"""After this time nobody is at work any more who could reach the store when a newer claim was written."""


class Fence:
    """Looks for a claim that is newer than one's own. Claims have numbers without gaps, so that one request tells."""

    def __init__(self, store: ObjectStore, number: int, *, coordinates: bool = False) -> None:
        """`number` is that of the own claim, which for a member is also the roster's.

        A member stays when somebody adopts it. Whoever `coordinates` is replaced by every newer claim.
        """
        self._store = store
        self._number = number
        self._coordinates = coordinates
        self._next = number + 1
        """The first claim that was not there, or that is not an adoption of this member."""
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._is_superseded = False

    def check(self) -> None:
        """Raise Superseded where a newer claim lies in the folder; a look that is a moment old is good enough."""
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
        """What to raise where there is a newer claim."""
        return Superseded(
            f"another coordinator has gone on with the run in {self._store.url}: {keys.claim(self._next)} "
            f"replaces claim {self._number}; this one ends and changes nothing any more"
        )

    @contextmanager
    def watched(self, abort: Abort, end: Callable[[], None]) -> Iterator[None]:
        """Look at once, and every few seconds inside the context; set the flag as soon as there is a newer claim.

        `end` ends the process where it does not heed the flag, because it computes or waits in somebody else's code.
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
                except StoreError as error:
                    logger.warning("whether there is a newer claim is not known; it will be tried again: %s", error)

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
            if self._coordinates or not self._is_adopted_by(data):
                return True
            self._next += 1

    def _is_adopted_by(self, data: bytes) -> bool:
        """Whether a claim leaves this member at work; one that cannot be read does not."""
        with suppress(RecordError):
            return decode_record(data, Adoption, "a claim").roster == self._number
        return False
