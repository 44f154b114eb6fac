"""The object store of a run, through obstore: one Rust client for S3, GCS, Azure, folders and memory.

obstore's calls release the GIL while they wait and while they move bytes, so threads overlap them with compute.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from zooid.core import environment
from zooid.core.errors import InputError, ObjectExists, ObjectNotFound, StoreError, StoreUnavailable, ZooidError
from zooid.core.runs.store_rules import PART_BYTES, SINGLE_PUT_BYTES
from zooid.core.text import has_credentials, quoted
from zooid.store.create_only import create_once
from zooid.store.retries import RetryingStore
from zooid.store.store_protocol import Data, Keys, ObjectStore, byte_view

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as Client

_NUM_PARTS_AT_ONCE = 4
_PIECE_BYTES = 4 * 2**20

_SMALL_PUT_BYTES = 256 * 2**10
"""Sixteen puts of this size at once pass a link of 1.1 MB/s, the slowest that a member may have, in 4 seconds."""

_CONNECT_TIMEOUT = timedelta(seconds=5)
_REQUEST_TIMEOUT = timedelta(minutes=10)
"""Of a whole response: a large object may take long, as long as it does not stall."""
_SMALL_SILENCE_S, _LARGE_SILENCE_S = 10.0, 30.0
"""How long a server may be silent: between two reads of a response, and for an upload from its start to the response.
A small request has its answer long before. The 32 MiB of a large put that are on their way at most fit through 1.1 MB/s
in 30 seconds."""
_SILENCE_SHARES = 1 / 12, 1 / 4
"""Whose patience is short wants to hear of silence sooner: a request takes at most such a share of it."""
_MAX_RETRIES = 2
_RETRY_SHARE = 1 / 24
"""The client itself only bridges a blip, at most 5 of 120 seconds, so that one failed part of a large put does not cost
the others. RetryingStore bridges everything longer, and says so."""

_EXAMPLES = {
    "file": "file:///home/me/run-7",
    "memory": "memory://run-7",
    "s3": "s3://bucket/run-7",
    "gs": "gs://bucket/run-7",
    "az": "az://container/run-7",
}
_CREDENTIALS = {
    "file": "the owner and the mode of the folder",
    "memory": "nothing: this is a mistake in zooid",
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and the rights they have on the bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, and the rights of that account on the bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, and their rights on the container",
}

_FAILURES = (exceptions.BaseError, OSError, ValueError)
_STATUS = re.compile(r"status code: (\d{3})|os error (\d+)")
_REFUSED = {401, 403}
_WORTH_RETRYING = {408, 409, 429}
_OS_REFUSED = {1, 13, 30}  # not permitted, permission denied, read-only file system
_OS_PERMANENT = {20, 21, 28, 36, 122}  # not a directory, is a directory, disk full, name too long, over quota

_KEY = re.compile(r"[^/#\x00-\x1f\x7f]+(?:/[^/#\x00-\x1f\x7f]+)*")
_PLAIN_KEY = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
"""Keys whose file has exactly their name; a client may write others in another way."""
_STAGED = re.compile(r".+#\d+")

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()
_process_in_use: int | None = None


def open_store(url: str) -> ObjectStore:
    """The store at a URL such as `s3://bucket/run-7` or `file:///home/me/run-7`; nothing is sent yet.

    The folder of a file:// URL is created. A memory:// store lives as long as the process, which has one for each
    URL. Cloud stores take credentials, and S3 its endpoint, from the environment. A store that fails is asked again
    for as long as `environment.store_patience_s` says.
    """
    parts = _split(url)
    url = url.rstrip("/")
    patience_s = environment.store_patience_s()
    small_s, large_s = (
        min(most_s, share * patience_s)
        for most_s, share in zip((_SMALL_SILENCE_S, _LARGE_SILENCE_S), _SILENCE_SHARES, strict=True)
    )
    try:
        small, large = (_client(url, parts, silence_s, patience_s) for silence_s in (small_s, large_s))
        return RetryingStore(ObstoreStore(url, parts.scheme, small, large), give_up_s=patience_s)
    except _FAILURES as error:
        raise InputError(
            f"the store {url} cannot be opened: {_first_line(error)}; check the URL (for example "
            f"{_EXAMPLES[parts.scheme]}) and {_CREDENTIALS[parts.scheme]}"
        ) from error


class ObstoreStore:
    """An ObjectStore on any of obstore's clients."""

    def __init__(self, url: str, scheme: str, client: "Client", large_client: "Client") -> None:
        """`large_client` is as patient with silence as large puts need."""
        self.url = url
        self._scheme = scheme
        self._client = client
        self._large_client = large_client
        self._folder = unquote(urlsplit(url).path) if scheme == "file" else None

    def put(self, key: str, data: Data) -> None:
        buffer = self._prepare(key, data)
        in_parts = self._scheme not in ("file", "memory") and len(buffer) > SINGLE_PUT_BYTES
        try:
            obstore.put(
                self._client_for(buffer),
                key,
                buffer,
                use_multipart=in_parts,
                chunk_size=PART_BYTES,
                max_concurrency=_NUM_PARTS_AT_ONCE,
            )
        except _FAILURES as error:
            raise self._translate(error, "put", key) from error

    def create(self, key: str, data: Data) -> None:
        buffer = self._prepare(key, data)

        def attempt() -> None:
            try:
                obstore.put(self._client_for(buffer), key, buffer, mode="create")
            except _FAILURES as error:
                raise self._translate(error, "create", key) from error

        create_once(attempt, lambda: self.get(key), key, buffer)

    def get(self, key: str) -> memoryview:
        _check_process()
        _check_key(key)
        # Waiting is asking for what is not there yet; the file system answers that 20 times faster than the client.
        if self._folder and _PLAIN_KEY.fullmatch(key) and not os.path.exists(f"{self._folder}/{key}"):
            raise ObjectNotFound(f"there is no object {key!r} in {self.url}")
        try:
            return memoryview(obstore.get(self._client, key).bytes())
        except _FAILURES as error:
            raise self._translate(error, "get", key) from error

    def stream(self, key: str) -> Iterator[Data]:
        _check_process()
        _check_key(key)
        num_bytes = 0
        try:
            answer = obstore.get(self._client, key)
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                num_bytes += len(piece)
                yield piece
        except _FAILURES as error:
            raise self._translate(error, "get", key) from error
        if num_bytes != answer.meta["size"]:
            raise StoreUnavailable(
                f"get of {key!r} in {self.url} ended after {num_bytes} of {answer.meta['size']} bytes"
            )

    def list(self, prefix: str, after: str = "") -> Keys:
        _check_process()
        try:
            found = obstore.list(self._client, prefix or None, offset=after or None).collect()
        except _FAILURES as error:
            raise self._translate(error, "list", prefix) from error
        return sorted(entry["path"] for entry in found)

    def list_folders(self, prefix: str) -> Keys:
        _check_process()
        try:
            found = obstore.list_with_delimiter(self._client, prefix or None)
        except _FAILURES as error:
            raise self._translate(error, "list", prefix) from error
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    def is_empty(self) -> bool:
        _check_process()
        try:
            return not any(obstore.list(self._client, chunk_size=1))
        except _FAILURES as error:
            raise self._translate(error, "list", "") from error

    def delete(self, keys: Iterable[str]) -> None:
        _check_process()
        doomed = [*keys]
        for key in doomed:
            _check_key(key)
        try:
            obstore.delete(self._client, doomed)
        except FileNotFoundError:  # some clients stop at the first that is missing
            self._delete_each(doomed)
        except _FAILURES as error:
            raise self._translate(error, "delete", ", ".join(doomed[:3])) from error

    def _delete_each(self, keys: Keys) -> None:
        for key in keys:
            try:
                obstore.delete(self._client, key)
            except FileNotFoundError:
                continue
            except _FAILURES as error:
                raise self._translate(error, "delete", key) from error

    def _client_for(self, buffer: Data) -> "Client":
        return self._client if len(buffer) <= _SMALL_PUT_BYTES else self._large_client

    def _prepare(self, key: str, data: Data) -> Data:
        _check_process()
        _check_key(key)
        buffer = byte_view(data)
        # obstore's memory store keeps the caller's buffer itself: what is written to it later would change the object.
        return bytes(buffer) if self._scheme == "memory" else buffer

    def _translate(self, error: Exception, operation: str, key: str) -> ZooidError:
        """One of our errors for one of obstore's, by its class, else by the status or error number it reports."""
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
            return StoreError(f"{what} failed, for its bucket or folder does not exist; create it first ({text})")
        is_refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if is_refused or status in _REFUSED or os_error in _OS_REFUSED:
            return StoreError(f"{what} was refused; check {_CREDENTIALS[self._scheme]} ({text})")
        if (400 <= status < 500 and status not in _WORTH_RETRYING) or os_error in _OS_PERMANENT:
            return StoreError(f"{what} failed, and would again: {text}")
        return StoreUnavailable(f"{what} failed: {text}")


def sweep(store: ObjectStore, prefix: str, *, min_age_s: float = 60.0) -> int:
    """Remove what killed writers left under a folder of a file:// store; how many files that were.

    A put there is staged as `name#1` and then renamed. Listings do not show staged files, so nobody else removes
    them. Younger ones may belong to a put that is still going on. What a put in parts leaves in a cloud
    store is for the bucket's own rule on incomplete uploads.
    """
    parts = urlsplit(store.url)
    if parts.scheme != "file":
        return 0
    newest_s = time.time() - min_age_s
    num_removed = 0
    # os.walk takes no offence at folders that vanish under its feet.
    for path in (Path(at) / name for at, _, names in os.walk(Path(unquote(parts.path)) / prefix) for name in names):
        try:
            if _STAGED.fullmatch(path.name) and path.stat().st_mtime <= newest_s:
                path.unlink()
                num_removed += 1
        except FileNotFoundError:
            continue  # its writer finished it after all
    return num_removed


def clear(store: ObjectStore, prefix: str) -> int:
    """Remove all objects of a folder; how many that were.

    Where folders exist by themselves, this one goes too, and so do those around it that hold nothing else, up to the
    store's own, which stays.
    """
    keys = store.list(prefix)
    if keys:
        store.delete(keys)
    sweep(store, prefix, min_age_s=0.0)
    parts = urlsplit(store.url)
    if parts.scheme == "file":
        root = Path(unquote(parts.path)) / prefix
        folders = [Path(at) for at, _, _ in os.walk(root, topdown=False)]
        above = [root, *root.parents][: len(Path(prefix).parts)]
        for folder in [*folders, *above]:
            with contextlib.suppress(OSError):  # it is not empty, or somebody else has removed it
                folder.rmdir()
    return len(keys)


def _split(url: str) -> SplitResult:
    """The parts of a URL that names a store, or an InputError that says what is wrong with it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _refusal(url, quoted(str(error))) from error
    if has_credentials(url):
        raise _refusal(
            url,
            "it holds a user's name or a password, which would be stored and printed with it; leave them out, and set "
            f"{_CREDENTIALS.get(parts.scheme, 'them in the environment').partition(', and')[0]}",
        )
    if "://" not in url or parts.scheme not in _EXAMPLES:
        raise _refusal(url, f"it must start with one of {', '.join(f'{scheme}://' for scheme in _EXAMPLES)}")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _refusal(url, "it must not contain ? or #")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise _refusal(url, "the path of a folder must be absolute, so that there are three slashes")
    elif not parts.netloc:
        raise _refusal(url, "it names no bucket, container or memory after the two slashes")
    return parts


def _refusal(url: str, why: str) -> InputError:
    # What follows a ? may be a signature, which is as good as a password.
    shown = quoted(url.partition("?")[0] + ("?…" if "?" in url else ""))
    return InputError(f"{shown!r} is not the URL of a store: {why}; for example {', '.join(_EXAMPLES.values())}")


def _client(url: str, parts: SplitResult, silence_s: float, patience_s: float) -> "Client":
    retries: RetryConfig = {
        "max_retries": _MAX_RETRIES,
        "retry_timeout": timedelta(seconds=patience_s * _RETRY_SHARE),
        "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2},
    }
    options: ClientConfig = {
        "connect_timeout": min(_CONNECT_TIMEOUT, timedelta(seconds=silence_s)),
        "read_timeout": timedelta(seconds=silence_s),
        "timeout": _REQUEST_TIMEOUT,
    }
    match parts.scheme:
        case "file":
            folder = Path(unquote(parts.path))
            folder.mkdir(parents=True, exist_ok=True)
            return LocalStore(folder)
        case "memory":
            with _memories_lock:
                return _memories.setdefault(url, MemoryStore())
        case "s3":
            # a signature over all bytes of a put would take a nanosecond for each of them, before the first is sent;
            # TLS protects them without
            config: S3Config = {"unsigned_payload": True}
            endpoint = environment.s3_endpoint()
            if endpoint is not None:
                # obstore reads the endpoint itself. Few services but AWS resolve a host name for each bucket.
                options["allow_http"] = endpoint.startswith("http://")
                config["virtual_hosted_style_request"] = False
            return S3Store.from_url(url, config=config, client_options=options, retry_config=retries)
        case "gs":
            return GCSStore.from_url(url, client_options=options, retry_config=retries)
        case "az":
            return AzureStore.from_url(url, client_options=options, retry_config=retries)
    raise AssertionError(f"no client for {url}")


def _check_key(key: str) -> None:
    """Keys that one kind of store would take and another would not are refused by all."""
    if not _KEY.fullmatch(key):
        raise InputError(
            f"{quoted(key)!r} cannot be a key: write names joined by single /, without # or control characters"
        )


def _check_process() -> None:
    """Refuse a forked child: obstore's threads do not live in it, and its first call would wait for ever."""
    global _process_in_use
    if _process_in_use is None:
        _process_in_use = os.getpid()
    elif _process_in_use != os.getpid():
        raise StoreError(
            "this process was forked from one that had already used an object store, whose client does not survive "
            "that; fork before the first use, or start the process anew"
        )


def _first_line(error: Exception) -> str:
    """Without the dump of internals that obstore puts below, and without the credentials of an endpoint."""
    return quoted(str(error).partition("\n")[0])
