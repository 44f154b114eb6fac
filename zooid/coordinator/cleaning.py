"""Removes what members of a run that ended badly have left in its store."""

import time

from zooid.core import keys
from zooid.core.errors import InputError
from zooid.store import clear, open_store, sweep

_LOOK_AGAIN_S = 1.5
"""Members that are at work write something within this time; so do those that wait, for others do."""


def clean(store: str, *, force: bool = False) -> int:
    """Remove the messages, meetings and probes in a store's folder; plans, events and checkpoints stay.

    A folder in which objects still come or go is refused, unless `force` says that this is known. How many objects
    were removed.
    """
    objects = open_store(store)
    before = objects.list(keys.COMM)
    if before and not force:
        time.sleep(_LOOK_AGAIN_S)
        if objects.list(keys.COMM) != before:
            raise InputError(
                f"somebody is exchanging messages in {objects.url} right now; end that run first, or use --force if "
                "you are sure, which makes it fail"
            )
    num_removed = sum(clear(objects, folder) for folder in (keys.COMM, keys.PROBES))
    sweep(objects, "", min_age_s=0.0 if force else 60.0)
    return num_removed
