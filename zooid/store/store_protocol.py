"""The operations that zooid needs of object storage; every cloud, a folder and memory support them."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview
"""Bytes to store; a memoryview may have any item type and shape, but must be C-contiguous."""

Keys: TypeAlias = list[str]
"""An alias, since inside a class with a method `list` that name means the method."""


class ObjectStore(Protocol):
    """Objects under keys such as `rosters/000001.json`, in one folder of one bucket.

    Every call may be made from any thread, and may raise StoreUnavailable. A key that holds an object is never a
    folder of other keys, which a file system could not represent.
    """

    url: str
    """The URL of the folder, without a trailing slash; `open_store` opens it in any process."""

    def put(self, key: str, data: Data) -> None:
        """Write an object, whole or not at all; an existing one is replaced."""

    def create(self, key: str, data: Data) -> None:
        """Write an object that must not exist yet; ObjectExists if it does, with other content.

        An object with exactly these bytes counts as written by this call, which tells a lost response from a lost race.
        Callers that race therefore put a nonce into the data. After StoreUnavailable it is unknown whether the object
        was written; calling again with the same data is safe.
        """

    def get(self, key: str) -> memoryview:
        """The bytes of an object, not copied; ObjectNotFound if it does not exist."""

    def stream(self, key: str) -> Iterator[Data]:
        """The bytes of an object, a few MiB at a time, for objects that may not fit into memory."""

    def list(self, prefix: str, after: str = "") -> Keys:
        """All keys below the folder `prefix`, sorted; with `after`, only those greater than it."""

    def list_folders(self, prefix: str) -> Keys:
        """Names of the folders directly in `prefix`, sorted; one request, however many objects they contain.

        A folder whose objects were all deleted may or may not be among them.
        """

    def is_empty(self) -> bool:
        """Whether the folder contains no object; one request, however many there are."""

    def stored_bytes(self, prefix: str) -> int:
        """Sum of the sizes of all objects below the folder `prefix`; as many requests as a listing takes."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; missing ones are ignored."""


def byte_view(data: Data) -> Data:
    """The same memory as a flat sequence of unsigned bytes, the only form that obstore accepts."""
    if not isinstance(data, memoryview) or (data.ndim == 1 and data.format == "B" and data.c_contiguous):
        return data
    return data.cast("B") if data.nbytes else b""
