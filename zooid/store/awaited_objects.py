"""Waiting for an object that somebody else is about to write."""

import time

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, ObjectNotFound, StoreUnavailable
from zooid.store.retries import outage_of, without_patience
from zooid.store.store_protocol import ObjectStore

_LOCAL_PACE = (0.0005, 0.1, 0.010)
_REMOTE_PACE = (0.005, 0.25, 0.100)
"""Shortest pause, share of the time already waited, longest pause. A wait is prolonged by a share of itself at most;
locally a look costs cores that others compute on, elsewhere it is a request that costs money."""


def wait_for(store: ObjectStore, key: str, *, timeout_s: float, abort: Abort) -> memoryview:
    """The object's bytes as soon as it exists; CommTimeout where it does not come, CommAborted when freed.

    A store that fails for a while is waited for, too. The flag is looked at between requests: a request in flight
    to a store that hangs ends with its own time-out first.
    """
    is_local = store.url.startswith(("file://", "memory://"))
    shortest_s, share, longest_s = _LOCAL_PACE if is_local else _REMOTE_PACE
    began_s = time.monotonic()
    asked, outage = without_patience(store), outage_of(store)
    failure: StoreUnavailable | None = None
    while True:
        abort.check()
        asked_s = time.monotonic()
        try:
            data = asked.get(key)
        except ObjectNotFound:
            failure = None
            outage.answered()
        except StoreUnavailable as error:
            failure = error
            outage.failed(asked_s, error, timeout_s)
        else:
            outage.answered()
            return data
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s:
            why = f"the store fails: {failure}" if failure else "whoever writes it is late or lost"
            raise CommTimeout(f"no {key!r} in {store.url} after {waited_s:.1f} s of waiting; {why}") from failure
        pause_s = min(max(shortest_s, share * waited_s), longest_s)
        abort.sleep(min(pause_s, timeout_s - waited_s))
