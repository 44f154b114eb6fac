"""The object store of a run, through obstore: one Rust client for S3, GCS, Azure, folders and memory.

Calls of obstore release the GIL while they wait and move bytes, so other threads compute meanwhile.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions

from zooid.core import environment
from zooid.core.errors import InputError, ObjectExists, ObjectNotFound, StoreError, StoreUnavailable, ZooidError
from zooid.core.runs.store_rules import PART_BYTES, SINGLE_PUT_BYTES
from zooid.core.text import quoted
from zooid.store.clients import CREDENTIALS, EXAMPLES, new_client, split_url
from zooid.store.create_only import create_once
from zooid.store.request_counts import CountingStore
from zooid.store.retries import RetryingStore
from zooid.store.store_protocol import Data, Keys, ObjectStore, byte_view

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_NUM_PARTS_AT_ONCE = 4
_PIECE_BYTES = 4 * 2**20

_SMALL_PUT_BYTES = 256 * 2**10
"""The largest put of the client with the short timeout.

On the slowest supported link, 1.1 MB/s, sixteen such puts at once take 4 seconds.
"""

_FAILURES = (exceptions.BaseError, OSError, ValueError)
_STATUS = re.compile(r"status code: (\d{3})|os error (\d+)")
_FORBIDDEN = {401, 403}
_WORTH_RETRYING = {408, 409, 429}
_OS_FORBIDDEN = {1, 13, 30}  # not permitted, permission denied, read-only file system
_OS_PERMANENT = {20, 21, 28, 36, 122}  # not a directory, is a directory, disk full, name too long, over quota

_KEY = re.compile(r"[^/#\x00-\x1f\x7f]+(?:/[^/#\x00-\x1f\x7f]+)*")
_PLAIN_KEY = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
"""Keys that obstore uses as file names without escaping."""

_process_in_use: int | None = None


def open_store(url: str) -> ObjectStore:
    """Open the store at a URL such as `s3://bucket/run-7` or `file:///home/me/run-7`; no request is sent yet.

    The folder of a file:// URL is created. A memory:// store lives as long as the process, which has one for each URL.
    Cloud stores take credentials, and S3 its endpoint, from the environment. Failed requests are retried for as long as
    `environment.store_patience_s` says.
    """
    parts = split_url(url)
    url = url.rstrip("/")
    patience_s = environment.store_patience_s()
    try:
        clients = (new_client(url, parts, patience_s, is_large=is_large) for is_large in (False, True))
        counted = CountingStore(ObstoreStore(url, parts.scheme, *clients))
        return RetryingStore(counted, give_up_s=patience_s)
    except _FAILURES as error:
        raise InputError(
            f"the store {url} cannot be opened: {_first_line(error)}; check the URL (for example "
            f"{EXAMPLES[parts.scheme]}) and {CREDENTIALS[parts.scheme]}"
        ) from error


class ObstoreStore:
    """An ObjectStore on any of obstore's clients."""

    def __init__(self, url: str, scheme: str, client: "Client", large_client: "Client") -> None:
        """`large_client` waits longer for a response, as large puts need."""
        self.url = url
        self._scheme = scheme
        self._client = client
        self._large_client = large_client
        self._folder = unquote(urlsplit(url).path) if scheme == "file" else None

    def put(self, key: str, data: Data) -> None:
        buffer = self._prepare(key, data)
        with self._request("put", key):
            obstore.put(
                self._client_for(buffer),
                key,
                buffer,
                use_multipart=self._scheme not in ("file", "memory") and len(buffer) > SINGLE_PUT_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=_NUM_PARTS_AT_ONCE,
            )

    def create(self, key: str, data: Data) -> None:
        buffer = self._prepare(key, data)

        def attempt() -> None:
            with self._request("create", key):
                obstore.put(self._client_for(buffer), key, buffer, mode="create")

        create_once(attempt, lambda: self.get(key), key, buffer)

    def get(self, key: str) -> memoryview:
        _check_process()
        _check_key(key)
        # polling asks for missing objects, which the file system answers 20 times faster than the client
        if self._folder and _PLAIN_KEY.fullmatch(key) and not os.path.exists(f"{self._folder}/{key}"):
            raise ObjectNotFound(f"there is no object {key!r} in {self.url}")
        with self._request("get", key):
            return memoryview(obstore.get(self._client, key).bytes())

    def stream(self, key: str) -> Iterator[Data]:
        _check_key(key)
        num_bytes = 0
        with self._request("get", key):
            response = obstore.get(self._client, key)
            for piece in response.stream(min_chunk_size=_PIECE_BYTES):
                num_bytes += len(piece)
                yield piece
        if num_bytes != response.meta["size"]:
            raise StoreUnavailable(
                f"get of {key!r} in {self.url} ended after {num_bytes} of {response.meta['size']} bytes"
            )

    def list(self, prefix: str, after: str = "") -> Keys:
        with self._request("list", prefix):
            entries = obstore.list(self._client, prefix or None, offset=after or None).collect()
        return sorted(entry["path"] for entry in entries)

    def list_folders(self, prefix: str) -> Keys:
        with self._request("list", prefix):
            listed = obstore.list_with_delimiter(self._client, prefix or None)
        return sorted(path.rpartition("/")[2] for path in listed["common_prefixes"])

    def is_empty(self) -> bool:
        with self._request("list", ""):
            return not any(obstore.list(self._client, chunk_size=1))

    def stored_bytes(self, prefix: str) -> int:
        with self._request("list", prefix):
            entries = obstore.list(self._client, prefix or None).collect()
        return sum(entry["size"] for entry in entries)

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        for key in doomed:
            _check_key(key)
        with self._request("delete", ", ".join(doomed[:3])):
            try:
                obstore.delete(self._client, doomed)
            except FileNotFoundError:  # some clients stop at the first missing object
                for key in doomed:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._client, key)

    @contextmanager
    def _request(self, operation: str, key: str) -> Iterator[None]:
        """Run a request of obstore, and translate its errors."""
        _check_process()
        try:
            yield
        except _FAILURES as error:
            raise self._translate(error, operation, key) from error

    def _client_for(self, buffer: Data) -> "Client":
        return self._client if len(buffer) <= _SMALL_PUT_BYTES else self._large_client

    def _prepare(self, key: str, data: Data) -> Data:
        _check_process()
        _check_key(key)
        buffer = byte_view(data)
        # obstore's memory store keeps the caller's buffer: a later write to it would change the object
        return bytes(buffer) if self._scheme == "memory" else buffer

    def _translate(self, error: Exception, operation: str, key: str) -> ZooidError:
        """The error of zooid for one of obstore, by its class, or by the status or error number in its text."""
        text = _first_line(error)
        what = f"{operation} of {key!r} in {self.url}"
        if isinstance(error, exceptions.AlreadyExistsError):
            return ObjectExists(f"{key!r} already exists in {self.url}")
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and operation == "get" and "NoSuchBucket" not in str(error):
            return ObjectNotFound(f"there is no object {key!r} in {self.url}")
        if isinstance(error, ValueError | exceptions.InvalidPathError):
            return InputError(f"{key!r} cannot be a key: {text}; write names joined by /, as in events/coordinator")
        numbers = _STATUS.search(text)
        status, os_error = (int(number or 0) for number in numbers.groups()) if numbers else (0, 0)
        if is_missing or status == 404:
            return StoreError(f"{what} failed, since its bucket or folder does not exist; create it first ({text})")
        is_forbidden = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if is_forbidden or status in _FORBIDDEN or os_error in _OS_FORBIDDEN:
            return StoreError(f"{what} was forbidden; check {CREDENTIALS[self._scheme]} ({text})")
        if (400 <= status < 500 and status not in _WORTH_RETRYING) or os_error in _OS_PERMANENT:
            return StoreError(f"{what} failed, and a retry would not help: {text}")
        return StoreUnavailable(f"{what} failed: {text}")


def _check_key(key: str) -> None:
    """Reject keys that some kinds of stores do not support."""
    if not _KEY.fullmatch(key):
        raise InputError(
            f"{quoted(key)!r} cannot be a key: write names joined by single /, without # or control characters"
        )


def _check_process() -> None:
    """Reject a forked child: obstore's threads do not exist in it, and its first call would wait for ever."""
    global _process_in_use
    if _process_in_use is None:
        _process_in_use = os.getpid()
    elif _process_in_use != os.getpid():
        raise StoreError(
            "this process was forked from one that had already used an object store, whose client does not survive a "
            "fork; fork before the first use, or start a new process"
        )


def _first_line(error: Exception) -> str:
    """The first line of an error, without the internals that obstore dumps below, and without credentials."""
    return quoted(str(error).partition("\n")[0])
