"""A temporary folder for members that measure."""

import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zooid.coordinator.runs.left_handles import clear_except_left
from zooid.core.errors import InputError
from zooid.store import ObjectStore, open_store

_NAME = re.compile("(?:profiling|probing|sweeping|rehearsal)-[0-9a-f]{16}")


@contextmanager
def scratch_folder(url: str | None, name: str) -> Iterator[ObjectStore]:
    """Yield a new folder in the store, or on this machine if `url` is None, and remove it afterwards.

    The handles of members that could not be ended stay.
    """
    if url is None:
        with tempfile.TemporaryDirectory(prefix="zooid-") as folder:
            yield open_store(Path(folder).as_uri())
        return
    reject_memory_store(url)
    folder_name = f"{name}-{secrets.token_hex(8)}"
    assert is_scratch(folder_name), "`zooid clean` could not find it"
    store = open_store(f"{url.rstrip('/')}/{folder_name}")
    try:
        yield store
    finally:
        clear_except_left(open_store(url), folder_name)


def is_scratch(name: str) -> bool:
    """Whether a folder has the name of such a temporary one."""
    return _NAME.fullmatch(name) is not None


def reject_memory_store(url: str) -> None:
    """Reject a store that lives in the memory of one process."""
    if url.startswith("memory://"):
        raise InputError(f"{url} lives in one process, but members are several; give file:///folder or s3://bucket/run")
