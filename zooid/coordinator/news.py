"""Passes on what is new in a folder that already holds the events of an earlier part of the run."""

from zooid.coordinator.relay import OnEvent, Relay
from zooid.core import keys
from zooid.store import EventReader, ObjectStore


class NewsRelay(Relay):
    """Leaves out everything that is there when it begins, without reading it: a long run has many events."""

    def __init__(self, store: ObjectStore, on_event: OnEvent) -> None:
        super().__init__(store, on_event)
        self._reader = _NewsReader(store)


class _NewsReader(EventReader):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        for writer in store.list_folders(keys.EVENTS):
            folder = keys.events_of(writer)
            if present := store.list(folder):
                self._next_numbers[folder] = int(present[-1].rpartition("/")[2].partition(".")[0]) + 1
