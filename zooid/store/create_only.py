"""Create-only puts, which decide races: their outcome must be unambiguous, and the store must honour them."""

import contextlib
import uuid
from collections.abc import Callable

from zooid.core.errors import ObjectExists, ObjectNotFound, StoreError, StoreUnavailable, UnsafeStore
from zooid.store.store_protocol import Data, ObjectStore

_PROBES = "probe"


def create_once(attempt: Callable[[], None], read: Callable[[], memoryview], key: str, data: Data) -> None:
    """Run a create-only put; if its outcome is ambiguous, read the object and compare.

    "It exists" is ambiguous, too: the client may have retried after a lost response, and found its own object.
    """
    try:
        attempt()
    except (ObjectExists, StoreUnavailable) as error:
        try:
            present = read()
        except ObjectNotFound:
            raise error from None
        if present == data:
            return
        raise ObjectExists(f"{key!r} already exists, with other content: another writer was first") from error


def check_create_only(store: ObjectStore) -> None:
    """Reject a store that lets the second writer of a create-only put win."""
    key = f"{_PROBES}/{uuid.uuid4().hex}"
    first, second = f"first writer of {key}".encode(), f"second writer of {key}".encode()
    store.create(key, first)
    try:
        try:
            store.create(key, second)
            is_rejected = False
        except ObjectExists:
            is_rejected = True
        is_kept = store.get(key) == first
    finally:
        with contextlib.suppress(StoreError):  # a leftover probe does no harm
            store.delete([key])
    if not (is_rejected and is_kept):
        what = (
            "rejected a second create-only put, yet applied it" if is_rejected else "accepted a second create-only put"
        )
        raise UnsafeStore(
            f"the store {store.url} {what}: two coordinators or two rosters could both win, and a run would silently "
            "split in two; use a store that honours If-None-Match, such as AWS S3, Google Cloud Storage, Azure Blob "
            "Storage, MinIO, or a file:// folder (`rclone serve s3` ignores it)"
        )
