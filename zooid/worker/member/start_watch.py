"""A member's look, while it connects, for a peer that was lost before it could connect."""

from zooid.core.abort import Abort
from zooid.core.errors import ObjectNotFound
from zooid.core.runs import keys
from zooid.store import ObjectStore


class StartWatch:
    """Ends the wait for peers of which one cannot come any more. Later, members notice a lost peer themselves."""

    def __init__(self, store: ObjectStore, number: int, abort: Abort) -> None:
        self.is_connected = False
        """Whether this member has connected to all of its peers."""
        self._store = store
        self._key = keys.lost_at_start(number)
        self._abort = abort

    def look(self) -> None:
        """Look for the name that the coordinator writes when a member is lost before it was heard."""
        if self.is_connected:
            return
        try:
            lost = bytes(self._store.get(self._key)).decode(errors="replace")
        except ObjectNotFound:
            return
        if not self.is_connected:
            self._abort.set(f"{lost} was lost before it had connected to its peers")
