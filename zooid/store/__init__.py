"""Object storage, which is all that the members of a run have in common.

`open_store` opens the run's folder on S3, GCS, Azure, a file system or in memory. `wait_for` waits for an object.
`check_create_only` rejects a store in which two writers can both win. `EventWriter` and `EventReader` carry events, and
`read_history` returns those of a whole run.
`Fence` tells whether another coordinator has taken over a run. `RetryingStore` retries requests that failed.
"""

from zooid.store.awaited_objects import wait_for
from zooid.store.create_only import check_create_only
from zooid.store.event_log import EventReader, EventWriter
from zooid.store.fences import Fence
from zooid.store.folders import clear, sweep
from zooid.store.history import read_history
from zooid.store.objects import open_store
from zooid.store.retries import RetryingStore
from zooid.store.store_protocol import Data, ObjectStore

__all__ = [
    "Data",
    "EventReader",
    "EventWriter",
    "Fence",
    "ObjectStore",
    "RetryingStore",
    "check_create_only",
    "clear",
    "open_store",
    "read_history",
    "sweep",
    "wait_for",
]
