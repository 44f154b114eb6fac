"""Handles of members that could not be ended. They stay there until `zooid clean` has ended the members."""

from contextlib import suppress

from zooid.core.errors import ObjectNotFound, RecordError, StoreError
from zooid.core.runs import keys
from zooid.store import ObjectStore, clear, sweep
from zooid.store.member_starts import cancel_start, find_start
from zooid.store.stored_records import find_end


def keep_handle(store: ObjectStore, member: str, roster: int) -> None:
    """Keep the handle of a member that could not be ended, unless it has ended or never starts."""
    with suppress(ObjectNotFound, RecordError, StoreError):  # what cannot be written now was not removed either
        cancel_start(store, member, roster)
        start = find_start(store, member, roster)
        if (start is None or not start.is_cancelled) and find_end(store, member, roster) is None:
            store.put(keys.left(member, roster), bytes(store.get(keys.handle(member, roster))))


def clear_except_left(store: ObjectStore, prefix: str) -> int:
    """Remove all objects under a prefix, and return their number; the handles of members that may still run stay."""
    listed = store.list(prefix)
    removed = [key for key in listed if not is_left(key)]
    if len(removed) == len(listed):
        return clear(store, prefix)
    store.delete(removed)
    sweep(store, prefix, min_age_s=0.0)
    return len(removed)


def is_left(key: str) -> bool:
    """Whether a key is that of the handle of such a member, in a run's folder or in one below it.

    >>> is_left("left/000000/r0s0.json"), is_left("profiling-0123/left/000000/profiler.json"), is_left("left/notes")
    (True, True, False)
    """
    return key.split("/")[-3:-2] == [keys.LEFT]
