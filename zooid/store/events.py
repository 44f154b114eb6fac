"""Events of a run, through its store: each writer appends small objects, a reader follows all writers."""

import logging
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from zooid.core import keys
from zooid.core.errors import ObjectNotFound, RecordError, StoreError
from zooid.core.events import Event, decode_events, encode_events
from zooid.store.protocol import ObjectStore

logger = logging.getLogger(__name__)

_FLUSH_INTERVAL_S = 0.3
"""Soon enough for a progress bar; a writer that never pauses makes 288,000 puts a day, $1.44 on S3."""
_NUM_CLOSING_ATTEMPTS = 5
_CLOSING_PAUSE_S = 0.1


class EventWriter:
    """Collects events and writes them in the background, so that no step waits for the store.

    A writer's name belongs to one process at a time. One that starts again goes on behind its earlier objects.
    """

    def __init__(self, store: ObjectStore, writer: str) -> None:
        self._store = store
        self._folder = keys.events_of(writer)
        self._buffer_lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._flush_lock = threading.Lock()
        self._unwritten = b""
        self._next_number: int | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, name=f"events of {writer}", daemon=True)
        self._thread.start()

    def write(self, event: Event) -> None:
        line = encode_events([event])
        with self._buffer_lock:
            if self._closing.is_set():
                raise AssertionError(f"an event was written to {self._folder} after it was closed: {event}")
            self._buffer.append(line)

    def close(self) -> None:
        """Write what is left; StoreError where the store still fails."""
        with self._buffer_lock:
            self._closing.set()
        self._thread.join()
        for _ in range(_NUM_CLOSING_ATTEMPTS - 1):
            try:
                self._flush()
            except StoreError:
                time.sleep(_CLOSING_PAUSE_S)
            else:
                return
        self._flush()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError as failure:
            if error is None:
                raise
            logger.warning("the last events of %s are lost: %s", self._folder, failure)  # `error` is the news

    def _flush_regularly(self) -> None:
        while not self._closing.wait(_FLUSH_INTERVAL_S):
            try:
                self._flush()
            except StoreError as error:
                logger.warning("events of %s are kept and will be tried again: %s", self._folder, error)

    def _flush(self) -> None:
        """Write one object, or two where one was left from a failure.

        An object that failed is tried again unchanged, for a reader may already have seen it.
        """
        with self._flush_lock:
            if self._unwritten:
                self._write_object()
            with self._buffer_lock:
                lines, self._buffer = self._buffer, []
            self._unwritten = b"".join(lines)
            if self._unwritten:
                self._write_object()

    def _write_object(self) -> None:
        if self._next_number is None:
            self._next_number = max(_numbers(self._store.list(self._folder)), default=-1) + 1
        self._store.put(_key(self._folder, self._next_number), self._unwritten)
        self._next_number += 1
        self._unwritten = b""


class EventReader:
    """Follows all writers of a run.

    A writer's objects are numbered without gaps, so one look for the next number tells whether there is news: only
    the names of the writers are listed, and each writer's objects once.
    """

    def __init__(self, store: ObjectStore, *, skips_present: bool = False) -> None:
        """`skips_present` leaves out what is there already, without reading it: a long run has many events."""
        self._store = store
        self._next_numbers: dict[str, int] = {}
        self._unreturned: list[Event] = []
        if skips_present:
            for writer in store.list_folders(keys.EVENTS):
                folder = keys.events_of(writer)
                if present := _numbers(store.list(folder)):
                    self._next_numbers[folder] = max(present) + 1

    def read_new(self) -> list[Event]:
        """The events that were not returned before, by time; after a StoreError none is lost."""
        for writer in self._store.list_folders(keys.EVENTS):
            folder = keys.events_of(writer)
            if folder not in self._next_numbers:
                present = _numbers(self._store.list(folder))
                if not present:
                    continue
                self._next_numbers[folder] = min(present)
            while self._read_next(folder):
                pass
        events, self._unreturned = self._unreturned, []
        return sorted(events, key=lambda event: event.at_s)

    def _read_next(self, folder: str) -> bool:
        key = _key(folder, self._next_numbers[folder])
        try:
            data = bytes(self._store.get(key))
        except ObjectNotFound:
            return False
        self._next_numbers[folder] += 1
        try:
            self._unreturned += decode_events(data, f"{self._store.url}/{key}")
        except RecordError as error:  # it tells of the run, which goes on without being told of
            logger.warning("the events in an object are left out: %s", error)
        return True


def _key(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.jsonl"


def _numbers(listed: Iterable[str]) -> list[int]:
    return [number for key in listed if (number := keys.number_in(key, "{:08d}.jsonl")) is not None]
