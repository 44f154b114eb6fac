"""Events of a run, through its store: each writer appends small objects, a reader follows all writers."""

import logging
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType

from zooid.core.errors import ObjectNotFound, RecordError, StoreError
from zooid.core.runs import keys
from zooid.core.runs.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    StepCommitted,
    StoppedEarly,
    decode_events,
    encode_events,
)
from zooid.core.runs.store_rules import EVENT_FLUSH_S
from zooid.store.fences import Fence
from zooid.store.rosters import read_roster
from zooid.store.store_protocol import ObjectStore

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.02
"""The first event is written at once. Then every pause is twice as long as the one before, up to EVENT_FLUSH_S."""


class EventWriter:
    """Collects events and writes them in the background, so that no step waits for the store.

    A writer's name belongs to one process at a time under one roster. One that starts again goes on behind its earlier
    objects. With a fence, nothing is told any more once somebody else has gone on with the run.
    """

    def __init__(self, store: ObjectStore, writer: str, roster: int = 0, fence: Fence | None = None) -> None:
        self._store = store
        self._fence = fence
        self._folder = keys.events_of(writer, roster)
        self._buffer_lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._flush_lock = threading.Lock()
        self._unwritten = b""
        self._next_number: int | None = None
        self._news = threading.Event()
        """Something is to be written, or the end has come."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, name=f"events of {writer}", daemon=True)
        self._thread.start()

    def write(self, event: Event) -> None:
        line = encode_events([event])
        with self._buffer_lock:
            if self._closing.is_set():
                raise AssertionError(f"an event was written to {self._folder} after it was closed: {event}")
            self._buffer.append(line)
        self._news.set()

    def turn_to(self, roster: int, change: int, writer: str) -> None:
        """Write what was told so far; what comes is told under another roster."""
        self._flush()
        with self._flush_lock:
            self._folder = keys.events_of(writer, roster, change)
            self._next_number = None

    def flush(self) -> None:
        """Write everything that was given so far; StoreError where the store still fails."""
        self._flush()

    def close(self) -> None:
        """Write what is left; StoreError where the store still fails."""
        with self._buffer_lock:
            self._closing.set()
        self._news.set()
        self._thread.join()
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
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            self._news.wait()
            self._news.clear()
            try:
                self._flush()
            except StoreError as error:
                self._news.set()
                logger.warning("events of %s are kept and will be tried again: %s", self._folder, error)
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, EVENT_FLUSH_S)

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
        if self._fence is not None and self._fence.is_superseded():
            logger.warning("events of %s are dropped: %s", self._folder, self._fence.error())
            self._unwritten = b""
            return
        if self._next_number is None:
            self._next_number = max(_numbers(self._store.list(self._folder)), default=-1) + 1
        self._store.put(_key(self._folder, self._next_number), self._unwritten)
        self._next_number += 1
        self._unwritten = b""


class EventReader:
    """Follows all writers under one roster of a run.

    A writer's objects are numbered without gaps, so one look for the next number tells whether there is news: only
    the names of the writers are listed, and each writer's objects once.
    """

    def __init__(
        self, store: ObjectStore, roster: int = 0, change: int = 0, begin: Mapping[str, int] | None = None
    ) -> None:
        """`begin` has the `next_numbers` of a reader that has returned everything before them."""
        self._store = store
        self._roster = (roster, change)
        prefix = f"{keys.events_under(roster, change)}/"
        self._next_numbers = {folder: number for folder, number in (begin or {}).items() if folder.startswith(prefix)}
        self._unreturned: list[Event] = []

    @property
    def next_numbers(self) -> dict[str, int]:
        """The number of the next object of every writer, by its folder."""
        return dict(self._next_numbers)

    def read_new(self) -> list[Event]:
        """The events that were not returned before, by time; after a StoreError none is lost."""
        for writer in self._store.list_folders(keys.events_under(*self._roster)):
            folder = keys.events_of(writer, *self._roster)
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


def last_told(store: ObjectStore, writer: str, roster: int, change: int) -> tuple[int, int]:
    """The last step and the last evaluation that this writer has told of under a roster; -1 for none.

    Writers tell in order, so that everything up to there has been told.
    """
    folder = keys.events_of(writer, roster, change)
    step = evaluated = -1
    for number in sorted(_numbers(store.list(folder)), reverse=True):
        key = _key(folder, number)
        for event in decode_events(bytes(store.get(key)), f"{store.url}/{key}"):
            if isinstance(event, StepCommitted):
                step = max(step, event.step)
            elif isinstance(event, Evaluated):
                evaluated = max(evaluated, event.step)
        if step >= 0:
            break
    return step, max(evaluated, step)  # the evaluation before a step is told before that step


def read_history(store: ObjectStore) -> list[Event]:
    """What happened in a run from its beginning, by roster and time, each step once.

    What a roster told counts only for steps before the step with which the next roster went on.
    """
    ends = {roster: _end_before(store, *roster) for roster in keys.rosters(store.list(keys.ROSTERS))}
    listed = store.list_folders(keys.EVENTS)
    told = [roster for name in listed if (roster := keys.roster_in(name)) is not None]
    history: list[Event] = []
    for roster in sorted(told):
        later = [end for other, end in ends.items() if other > roster]
        history += [
            event for event in EventReader(store, *roster).read_new() if _counts(event, min(later, default=None))
        ]
    return _once(history)


def _once(history: list[Event]) -> list[Event]:
    """Each step and each evaluation once: a member that was taken for lost may have told of it late."""
    seen: set[tuple[type, int]] = set()
    kept: list[Event] = []
    for event in reversed(history):
        if isinstance(event, StepCommitted | Evaluated):
            if (type(event), event.step) in seen:
                continue
            seen.add((type(event), event.step))
        kept.append(event)
    return kept[::-1]


_End = tuple[int, bool]
"""A step, and whether what comes before it, as an evaluation, still counts."""


def _end_before(store: ObjectStore, number: int, change: int) -> _End:
    """Where what earlier rosters have told ends to count."""
    roster = read_roster(store, number, change)
    return roster.resume_step, roster.resume_step > 0 and not roster.is_between_steps


def _counts(event: Event, end: _End | None) -> bool:
    """Whether an event is of a step that was not run again later; what has no step always counts."""
    match event:
        case _ if end is None:
            return True
        case StepCommitted():
            return event.step < end[0]
        case Evaluated() | CheckpointSaved() | StoppedEarly():  # after so many steps
            return (event.step, False) < end
        case _:
            return True


def _key(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.jsonl"


def _numbers(listed: Iterable[str]) -> list[int]:
    return [number for key in listed if (number := keys.number_in(key, "{:08d}.jsonl")) is not None]
