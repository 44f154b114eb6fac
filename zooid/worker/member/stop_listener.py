"""The first member's look for a reason to stop the run: a request of a person, or a limit."""

import logging
import time
from collections.abc import Callable

from zooid.core.errors import ObjectNotFound
from zooid.core.runs import keys
from zooid.core.runs.stop_request import STOPPED_BY_REQUEST
from zooid.store import ObjectStore
from zooid.worker.member.limit_watch import LimitWatch

logger = logging.getLogger(__name__)


class StopListener:
    """Looks for reasons to stop the members of one claim. The answer travels with the votes of the first member."""

    def __init__(self, store: ObjectStore, number: int, *, has_limits: bool = False) -> None:
        self.is_first = False
        """Whether this member is the first of its roster; the others send no requests to the store."""
        self.reason = STOPPED_BY_REQUEST
        """Why the run stops, if it does."""
        self._limits = LimitWatch(store, number) if has_limits else None
        self._store = store
        self._key = keys.stop_request(number)
        self._is_found = False

    def take_seat(self, *, is_first: bool, checkpoint_s: Callable[[], float]) -> None:
        """Begin under another roster. `checkpoint_s` returns the time that a checkpoint takes."""
        self.is_first = is_first
        if self._limits is not None and is_first:
            self._limits.begin(checkpoint_s, time.time())
            self._limits.look()

    def look(self) -> None:
        """Look for the request, unless it is found already, and at the limits."""
        if not self.is_first or self._is_found:
            return
        if self._limits is not None:
            self._limits.look()
        try:
            self._store.get(self._key)
        except ObjectNotFound:
            return
        logger.info("%s asks to stop: the run ends at the next step boundary", self._key)
        self._is_found = True

    def is_stop_asked(self) -> bool:
        """Whether this member is the first and has found a reason to stop. It is asked once for every step.

        It sends a request to the store only if the run would stop for a limit, because what is known of its cost may
        be older than its members.
        """
        if self.is_first and self._limits is not None and not self._is_found:
            reason = self._limits.vote(time.time())
            if reason:
                self._limits.look()
                reason = self._limits.reason(time.time())
            if reason:
                logger.info("the run stops: %s", reason)
                self.reason, self._is_found = reason, True
        return self.is_first and self._is_found
