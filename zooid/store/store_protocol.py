"""What zooid asks of object storage: so little that every cloud's store, a folder and memory can do it."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview
"""What can be stored; a memoryview may be of any item type and shape, as long as it is C-contiguous."""

Keys: TypeAlias = list[str]
"""Spelled out here because inside a class with a method `list` the name means that method."""


class ObjectStore(Protocol):
    """Objects under keys such as `rosters/000001.json`, in one folder of one bucket.

    Every call may be made from any thread, and may raise StoreUnavailable. A key that holds an object is never a
    folder of other keys, which a file system could not represent.
    """

    url: str
    """Where the folder is, without a trailing slash; `open_store` of it, in any process, gives the same objects."""

    def put(self, key: str, data: Data) -> None:
        """Write an object, whole or not at all, over whatever was there."""

    def create(self, key: str, data: Data) -> None:
        """Write an object that must not exist yet; ObjectExists where it does, with other content.

        An object that holds exactly these bytes counts as written by this call: that is how a lost response is told
        from a lost race. Callers who race therefore put a nonce into the data. On StoreUnavailable it is unknown
        whether the object was written; calling again with the same data is safe.
        """

    def get(self, key: str) -> memoryview:
        """The object's bytes, not copied; ObjectNotFound where there is none."""

    def stream(self, key: str) -> Iterator[Data]:
        """The same, a few MiB at a time: for objects that are larger than the memory that may be spent on them."""

    def list(self, prefix: str, after: str = "") -> Keys:
        """All keys under the folder `prefix`, at any depth, sorted; with `after`, only those greater than it."""

    def list_folders(self, prefix: str) -> Keys:
        """Names of the folders directly in `prefix`, sorted, in one request however many objects they hold.

        A folder whose objects were all deleted may or may not be among them.
        """

    def is_empty(self) -> bool:
        """Whether the folder holds no object at all; one request, however many it holds."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that do not exist are fine."""


def byte_view(data: Data) -> Data:
    """The same memory as a flat run of unsigned bytes, the only form that obstore takes."""
    if not isinstance(data, memoryview) or (data.ndim == 1 and data.format == "B" and data.c_contiguous):
        return data
    return data.cast("B") if data.nbytes else b""
