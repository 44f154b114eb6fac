"""Folders that only their owner may read, for what other users of a machine must not see."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from zooid.core.errors import StoreError
from zooid.store.store_protocol import ObjectStore

_OWNER_ONLY = 0o700


def make_private(store: ObjectStore, prefix: str) -> None:
    """Let only the owner into a folder of a file:// store, whatever the modes of the files in it.

    Who may read objects of a bucket is for the bucket's own policy to say.
    """
    parts = urlsplit(store.url)
    if parts.scheme != "file":
        return
    folder = Path(unquote(parts.path)) / prefix
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        if folder.stat().st_mode & 0o777 != _OWNER_ONLY:
            folder.chmod(_OWNER_ONLY)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} holds secrets, but it cannot be kept from other users ({error.strerror}); give all "
            "members the same user, and a folder that belongs to it"
        ) from error
