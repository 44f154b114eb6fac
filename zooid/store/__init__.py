"""Object storage: all that the members of a run have in common.

`open_store` gives the run's folder, on S3, GCS, Azure, a file system or in memory; `wait_for` waits for an object;
`check_create_only` refuses a store in which two writers can both win; `EventWriter` and `EventReader` carry what
happens; `Fence` tells whether somebody else has gone on with a run; `RetryingStore` asks again; `FaultyStore` fails on
purpose.
"""

from zooid.store.awaited_objects import wait_for
from zooid.store.create_only import check_create_only
from zooid.store.event_log import EventReader, EventWriter
from zooid.store.faults import Faults, FaultyStore, Rates
from zooid.store.fences import Fence
from zooid.store.objects import clear, open_store, sweep
from zooid.store.retries import RetryingStore
from zooid.store.store_protocol import Data, ObjectStore

__all__ = [
    "Data",
    "EventReader",
    "EventWriter",
    "Faults",
    "FaultyStore",
    "Fence",
    "ObjectStore",
    "Rates",
    "RetryingStore",
    "check_create_only",
    "clear",
    "open_store",
    "sweep",
    "wait_for",
]
