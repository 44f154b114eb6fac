"""Waiting for an object that somebody else is about to write."""

import time

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, ObjectNotFound, StoreUnavailable
from zooid.store.protocol import ObjectStore

_GROWTH = 1.5
_LOCAL_INTERVALS_S = (0.0005, 0.003)
"""First and longest pause: a look and its pause cost 30 µs, so that even a long wait takes 1 % of a core."""
_REMOTE_INTERVALS_S = (0.005, 0.100)
"""Each look is a request of a few milliseconds that costs money."""


def wait_for(store: ObjectStore, key: str, *, timeout_s: float, abort: Abort) -> memoryview:
    """The object's bytes as soon as it exists; CommTimeout where it does not come, CommAborted when freed.

    A store that fails for a while is waited for, too. The flag is looked at between requests: a request in flight
    to a store that hangs ends with its own time-out first.
    """
    is_local = store.url.startswith(("file://", "memory://"))
    interval_s, longest_s = _LOCAL_INTERVALS_S if is_local else _REMOTE_INTERVALS_S
    began_s = time.monotonic()
    failure: StoreUnavailable | None = None
    while True:
        abort.check()
        try:
            return store.get(key)
        except ObjectNotFound:
            failure = None
        except StoreUnavailable as error:
            failure = error
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s:
            why = f"the store fails: {failure}" if failure else "whoever writes it is late or lost"
            raise CommTimeout(f"no {key!r} in {store.url} after {waited_s:.1f} s of waiting; {why}") from failure
        abort.sleep(min(interval_s, timeout_s - waited_s))
        interval_s = min(interval_s * _GROWTH, longest_s)
