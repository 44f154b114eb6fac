"""URLs of stores, and the obstore client for each kind of store."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from zooid.core import environment
from zooid.core.errors import InputError
from zooid.core.text import has_credentials, quoted
from zooid.store.cloud_logins import aws_login

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as Client

_CONNECT_TIMEOUT = timedelta(seconds=5)
_REQUEST_TIMEOUT = timedelta(minutes=10)
"""The timeout of a whole response; a large object may take long, as long as it does not stall."""
_SMALL_SILENCE_S, _LARGE_SILENCE_S = 10.0, 30.0
"""How long a server may be silent: between two reads of a response, or from the start of an upload to its response.

Small requests are answered long before. At most 32 MiB of a large put are in flight, which take 30 s at 1.1 MB/s.
"""
_SMALL_SILENCE_FRACTION, _LARGE_SILENCE_FRACTION = 1 / 12, 1 / 4
"""The largest silence as a fraction of the patience, so that short patience means short timeouts."""
_MAX_RETRIES = 2
_RETRY_FRACTION = 1 / 24
"""The time for retries of the client itself, as a fraction of the patience: 5 of 120 seconds.

They keep one failed part of a large put from costing the others. RetryingStore covers longer outages, and logs them.
"""

EXAMPLES = {
    "file": "file:///home/me/run-7",
    "memory": "memory://run-7",
    "s3": "s3://bucket/run-7",
    "gs": "gs://bucket/run-7",
    "az": "az://container/run-7",
}
CREDENTIALS = {
    "file": "the owner and the mode of the folder",
    "memory": "nothing: this is a bug in zooid",
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and the rights they have on the bucket",
    "gs": "GOOGLE_APPLICATIONCREDENTIALS, and the rights of that account on the bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, and their rights on the container",
}

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


def split_url(url: str) -> SplitResult:
    """Split the URL of a store; InputError says what is wrong with it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _rejection(url, quoted(str(error))) from error
    if has_credentials(url):
        raise _rejection(
            url,
            "it holds a user's name or a password, which would be stored and printed with it; leave them out, and set "
            f"{CREDENTIALS.get(parts.scheme, 'them in the environment').partition(', and')[0]}",
        )
    if "://" not in url or parts.scheme not in EXAMPLES:
        raise _rejection(url, f"it must start with one of {', '.join(f'{scheme}://' for scheme in EXAMPLES)}")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _rejection(url, "it must not contain ? or #")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise _rejection(url, "the path of a folder must be absolute, so that three slashes follow the colon")
    elif not parts.netloc:
        raise _rejection(url, "it names no bucket, container or memory after the two slashes")
    return parts


def _rejection(url: str, why: str) -> InputError:
    # the query may contain a signature, which is as secret as a password
    shown = quoted(url.partition("?")[0] + ("?…" if "?" in url else ""))
    return InputError(f"{shown!r} is not the URL of a store: {why}; for example {', '.join(EXAMPLES.values())}")


def new_client(url: str, parts: SplitResult, patience_s: float, *, is_large: bool) -> "Client":
    """The client of a store; one for large puts waits longer for a response."""
    if is_large:
        silence_s = min(_LARGE_SILENCE_S, _LARGE_SILENCE_FRACTION * patience_s)
    else:
        silence_s = min(_SMALL_SILENCE_S, _SMALL_SILENCE_FRACTION * patience_s)
    retries: RetryConfig = {
        "max_retries": _MAX_RETRIES,
        "retry_timeout": timedelta(seconds=patience_s * _RETRY_FRACTION),
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
            # signing every byte of a put would delay it by 1 ns a byte, and TLS protects the bytes anyway
            config: S3Config = {"unsigned_payload": True}
            endpoint = environment.s3_endpoint()
            if endpoint is not None:
                # obstore reads the endpoint itself; few services other than AWS have a host name for each bucket
                options["allow_http"] = endpoint.startswith("http://")
                config["virtual_hosted_style_request"] = False
            try:
                login = aws_login()
            except LookupError as error:
                raise InputError(str(error)) from error
            return S3Store.from_url(url, config=config, client_options=options, retry_config=retries, **login)
        case "gs":
            return GCSStore.from_url(url, client_options=options, retry_config=retries)
        case "az":
            return AzureStore.from_url(url, client_options=options, retry_config=retries)
    raise AssertionError(f"no client for {url}")
