"""The first member's look for a request to stop the run."""

import logging

from zooid.core.errors import ObjectNotFound
from zooid.core.runs import keys
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)


class StopListener:
    """Looks for the request to stop the members of one claim. The answer travels with the votes of the first member."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        self.is_first = False
        """Whether this member is the first of its roster; the others send no requests to the store."""
        self._store = store
        self._key = keys.stop_request(number)
        self._is_found = False

    def look(self) -> None:
        """Look for the request, unless it is found already."""
        if not self.is_first or self._is_found:
            return
        try:
            self._store.get(self._key)
        except ObjectNotFound:
            return
        logger.info("%s asks to stop: the run ends at the next step boundary", self._key)
        self._is_found = True

    def is_stop_asked(self) -> bool:
        """Whether this member is the first and has found the request; sends no request."""
        return self.is_first and self._is_found
