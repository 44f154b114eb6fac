"""A member's look for a peer that was lost before all have begun."""

from collections.abc import Callable

from zooid.core.abort import Abort
from zooid.core.errors import ObjectNotFound
from zooid.core.runs import keys
from zooid.store import ObjectStore


class StartWatch:
    """Ends the wait for peers of which one cannot come any more. Later, members notice a lost peer themselves."""

    def __init__(self, store: ObjectStore, number: int, abort: Abort, has_begun: Callable[[], bool]) -> None:
        """`has_begun` says whether this member and all of its peers are there."""
        self._store = store
        self._key = keys.lost_at_start(number)
        self._abort = abort
        self._has_begun = has_begun

    def look(self) -> None:
        """Look for the name that the coordinator writes when a member is lost before it was heard."""
        if self._has_begun():
            return
        try:
            lost = bytes(self._store.get(self._key)).decode(errors="replace")
        except ObjectNotFound:
            return
        if not self._has_begun():
            self._abort.set(f"{lost} was lost before all members had begun")
