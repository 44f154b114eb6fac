"""Removes what members of a run that ended badly have left in its store."""

import time

from zooid.coordinator.lease import is_held, refuse_others
from zooid.core import keys
from zooid.core.errors import InputError
from zooid.store import clear, open_store, sweep
from zooid.store.checkpoints import sweep_incomplete

_LOOK_AGAIN_S = 1.5
"""Members that are at work write something within this time; so do those that wait, for others do."""


def clean(store: str, *, force: bool = False) -> int:
    """Remove messages, meetings, probes and checkpoints that were never completed from a store's folder; plans, events
    and complete checkpoints stay.

    A folder in which a coordinator or members are at work is refused, unless `force` says that this is known. How many
    objects were removed.
    """
    objects = open_store(store)
    if not force:
        refuse_others(objects)
    before = objects.list(keys.COMM)
    if before and not force:
        time.sleep(_LOOK_AGAIN_S)
        if objects.list(keys.COMM) != before:
            raise InputError(
                f"somebody is exchanging messages in {objects.url} right now; end that run first, or use --force if "
                "you are sure, which makes it fail"
            )
    num_removed = sum(clear(objects, folder) for folder in (keys.COMM, keys.PROBES))
    if not force or not is_held(objects):  # whoever is at work may be about to complete one
        num_removed += sweep_incomplete(objects)
        objects.delete([keys.LEASE])
    sweep(objects, "", min_age_s=0.0 if force else 60.0)
    return num_removed
