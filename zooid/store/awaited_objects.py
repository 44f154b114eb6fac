"""Waiting for an object that another process is about to write."""

import time

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, ObjectNotFound, StoreUnavailable
from zooid.store.retries import outage_of, without_patience
from zooid.store.store_protocol import ObjectStore

_LOCAL_PACE = (0.0005, 0.1, 0.010)
_REMOTE_PACE = (0.005, 0.25, 0.100)
"""Shortest pause, pause as a fraction of the time already waited, and longest pause between two looks.

A local look takes processor time from computing members; a remote one is a request that costs money.
"""


def wait_for(store: ObjectStore, key: str, *, timeout_s: float, abort: Abort) -> memoryview:
    """The bytes of an object as soon as it exists; CommTimeout if it does not come, CommAborted when `abort` is set.

    Outages of the store are waited for, too. `abort` is checked between requests: a request in flight to a store that
    hangs ends with its own timeout first.
    """
    is_local = store.url.startswith(("file://", "memory://"))
    min_s, fraction, max_s = _LOCAL_PACE if is_local else _REMOTE_PACE
    began_s = time.monotonic()
    once, outage = without_patience(store), outage_of(store)
    failure: StoreUnavailable | None = None
    while True:
        abort.check()
        asked_s = time.monotonic()
        try:
            data = once.get(key)
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
            why = f"the store fails: {failure}" if failure else "its writer is late or lost"
            raise CommTimeout(f"no {key!r} in {store.url} after {waited_s:.1f} s of waiting; {why}") from failure
        pause_s = min(max(min_s, fraction * waited_s), max_s)
        abort.sleep(min(pause_s, timeout_s - waited_s))
