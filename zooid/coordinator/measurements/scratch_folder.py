"""A folder for members that measure: nothing of it stays, however they end."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zooid.core.errors import InputError
from zooid.store import ObjectStore, clear, open_store


@contextmanager
def scratch_folder(url: str | None, name: str) -> Iterator[ObjectStore]:
    """A folder of its own in the store, or one of this machine; gone afterwards, whatever else the store holds."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="zooid-") as folder:
            yield open_store(Path(folder).as_uri())
        return
    refuse_memory(url)
    folder_name = f"{name}-{secrets.token_hex(8)}"
    objects = open_store(f"{url.rstrip('/')}/{folder_name}")
    try:
        yield objects
    finally:
        clear(open_store(url), folder_name)


def refuse_memory(url: str) -> None:
    if url.startswith("memory://"):
        raise InputError(f"{url} lives in one process, but members are several; give file:///folder or s3://bucket/run")
