"""Folders of a file:// store: clearing them, sweeping unfinished files, and hiding secrets from other users."""

import contextlib
import os
import re
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zooid.core.errors import StoreError
from zooid.store.store_protocol import ObjectStore

_STAGED = re.compile(r".+#\d+")
_OWNER_ONLY = 0o700


def sweep(store: ObjectStore, prefix: str, *, min_age_s: float = 60.0) -> int:
    """Remove unfinished files of killed writers from a folder of a file:// store, and return their number.

    A put there is staged as `name#1` and then renamed. Listings do not show staged files, so nothing else removes
    them. Younger files may belong to a put in progress. In a bucket, its own rule on incomplete uploads applies.
    """
    folder = _folder(store, prefix)
    if folder is None:
        return 0
    newest_s = time.time() - min_age_s
    num_removed = 0
    # os.walk tolerates folders that vanish meanwhile
    for path in (Path(parent) / name for parent, _, names in os.walk(folder) for name in names):
        try:
            if _STAGED.fullmatch(path.name) and path.stat().st_mtime <= newest_s:
                path.unlink()
                num_removed += 1
        except FileNotFoundError:
            continue  # its writer has finished it
    return num_removed


def clear(store: ObjectStore, prefix: str) -> int:
    """Remove all objects under a prefix, and return their number.

    In a file:// store, the folder and its empty parents are removed as well, but not the folder of the store itself.
    """
    keys = store.list(prefix)
    if keys:
        store.delete(keys)
    sweep(store, prefix, min_age_s=0.0)
    root = _folder(store, prefix)
    if root is not None:
        inside = [Path(parent) for parent, _, _ in os.walk(root, topdown=False)]
        above = [root, *root.parents][: len(Path(prefix).parts)]
        for folder in [*inside, *above]:
            with contextlib.suppress(OSError):  # it is not empty, or another process has removed it
                folder.rmdir()
    return len(keys)


def make_private(store: ObjectStore, prefix: str) -> None:
    """Let only the owner read a folder of a file:// store; a bucket has its own policy for that."""
    folder = _folder(store, prefix)
    if folder is None:
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        if folder.stat().st_mode & 0o777 != _OWNER_ONLY:
            folder.chmod(_OWNER_ONLY)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} holds secrets, but cannot be hidden from other users ({error.strerror}); run all "
            "members as the same user, and give a folder that belongs to it"
        ) from error


def _folder(store: ObjectStore, prefix: str) -> Path | None:
    """The folder of a file:// store; None for any other store."""
    parts = urlsplit(store.url)
    return Path(unquote(parts.path)) / prefix if parts.scheme == "file" else None
