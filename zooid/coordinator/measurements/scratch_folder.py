"""A temporary folder for members that measure."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zooid.core.errors import InputError
from zooid.store import ObjectStore, clear, open_store


@contextmanager
def scratch_folder(url: str | None, name: str) -> Iterator[ObjectStore]:
    """Yield a new folder in the store, or on this machine if `url` is None, and remove it afterwards."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="zooid-") as folder:
            yield open_store(Path(folder).as_uri())
        return
    reject_memory_store(url)
    folder_name = f"{name}-{secrets.token_hex(8)}"
    store = open_store(f"{url.rstrip('/')}/{folder_name}")
    try:
        yield store
    finally:
        clear(open_store(url), folder_name)


def reject_memory_store(url: str) -> None:
    """Reject a store that lives in the memory of one process."""
    if url.startswith("memory://"):
        raise InputError(f"{url} lives in one process, but members are several; give file:///folder or s3://bucket/run")
