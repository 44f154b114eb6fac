"""Create-only puts decide who wins, so they must be unambiguous, and the store must honour them."""

import contextlib
import uuid
from collections.abc import Callable

from zooid.core.errors import ObjectExists, ObjectNotFound, StoreError, StoreUnavailable, UnsafeStore
from zooid.store.store_protocol import Data, ObjectStore

_PROBES = "probe"


def create_once(attempt: Callable[[], None], read: Callable[[], memoryview], key: str, data: Data) -> None:
    """Run a create-only put, and where its answer is ambiguous, read back and compare.

    "It exists" is ambiguous too: the client may have sent the request again after a lost response, and met its own
    object.
    """
    try:
        attempt()
    except (ObjectExists, StoreUnavailable) as error:
        try:
            found = read()
        except ObjectNotFound:
            raise error from None
        if found == data:
            return
        raise ObjectExists(f"{key!r} already exists, with other content: another writer was first") from error


def check_create_only(store: ObjectStore) -> None:
    """Refuse a store that lets the second writer of a create-only put win."""
    key = f"{_PROBES}/{uuid.uuid4().hex}"
    first, second = f"first writer of {key}".encode(), f"second writer of {key}".encode()
    store.create(key, first)
    try:
        try:
            store.create(key, second)
            refused = False
        except ObjectExists:
            refused = True
        kept = store.get(key) == first
    finally:
        with contextlib.suppress(StoreError):  # a leftover probe harms nobody; the answer matters more
            store.delete([key])
    if not (refused and kept):
        what = (
            "accepted a second create-only put" if not refused else "refused a second create-only put, yet applied it"
        )
        raise UnsafeStore(
            f"the store {store.url} {what}: two coordinators or two rosters could both win, and a run would silently "
            "split in two; use a store that honours If-None-Match, such as AWS S3, Google Cloud Storage, Azure Blob "
            "Storage, MinIO, or a file:// folder (`rclone serve s3` ignores it)"
        )
