"""What people and members tell the coordinator of a run through its store."""

import logging
import time
from dataclasses import dataclass, field

from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.records import decode_one_of
from zooid.core.runs import keys
from zooid.core.runs.requests import LayoutRequest, Notice
from zooid.core.runs.store_rules import REQUEST_LOOK_S, look_s
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)


@dataclass
class IncomingRequests:
    """The requests to one claim's members, each of which is read once and deleted when it is done.

    So another coordinator, which adopts the members, finds those that are left.
    """

    store: ObjectStore
    number: int
    _read: set[str] = field(default_factory=set)
    _next_look_s: float = 0.0

    def read_new(self) -> list[tuple[str, LayoutRequest | Notice]]:
        """Return new requests with their keys, unless the last look was a moment ago."""
        if time.monotonic() < self._next_look_s:
            return []
        self._next_look_s = time.monotonic() + look_s(self.store.url, REQUEST_LOOK_S)
        new: list[tuple[str, LayoutRequest | Notice]] = []
        others = {*self._read, keys.stop_request(self.number)}  # members themselves heed a request to stop
        for key in sorted(set(self.store.list(keys.requests_under(self.number))) - others):
            self._read.add(key)
            try:
                data = bytes(self.store.get(key))
                request = decode_one_of(data, (LayoutRequest, Notice), f"{self.store.url}/{key}")
            except (ObjectNotFound, RecordError) as error:
                logger.warning("a request is ignored: %s", error)
                continue
            assert isinstance(request, LayoutRequest | Notice)
            new.append((key, request))
        return new

    def end(self, key: str) -> None:
        """Delete a request that is done. The next one may have the same key."""
        self.store.delete([key])
        self._read.discard(key)
