"""Requests that a member ends, for platforms that let nobody send a signal to it."""

import logging
import threading
from collections.abc import Callable

from zooid.core.errors import ObjectNotFound, StoreError
from zooid.core.runs import keys
from zooid.store.store_protocol import ObjectStore

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two looks for a request. On S3, they cost 0.07 cents an hour for each member."""


def dismiss(store: ObjectStore, member: str, roster: int) -> None:
    """Ask a member to end."""
    store.put(keys.dismissal(member, roster), b"{}")


def is_dismissed(store: ObjectStore, member: str, roster: int) -> bool:
    """Whether a member was asked to end."""
    try:
        store.get(keys.dismissal(member, roster))
    except ObjectNotFound:
        return False
    return True


class DismissalWatch:
    """Looks for the request from time to time in a thread, until it has come or the watch is closed."""

    def __init__(self, store: ObjectStore, member: str, roster: int, on_dismissal: Callable[[], None]) -> None:
        self._store = store
        self._member = member
        self._roster = roster
        self._on_dismissal = on_dismissal
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dismissal-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking. A look that is under way may take until its request times out, and is not waited for."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if is_dismissed(self._store, self._member, self._roster):
                    if not self._closing.is_set():
                        self._on_dismissal()
                    return
            except StoreError as error:
                logger.warning("whether %s is asked to end cannot be read: %s", self._member, error)
            self._closing.wait(LOOK_S)
