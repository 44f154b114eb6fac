"""The events of a run in its store: each writer appends small objects, and a reader follows all writers."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from zooid.core.errors import ObjectNotFound, RecordError, StoreError
from zooid.core.runs import keys
from zooid.core.runs.events import BaseEvent, Evaluated, Event, StepCommitted, StoreUsed, decode_events, encode_events
from zooid.core.runs.store_rules import EVENT_FLUSH_S, USAGE_REPORT_S
from zooid.store.fences import Fence
from zooid.store.fetch_log import fetched
from zooid.store.request_counts import counts_of
from zooid.store.store_protocol import ObjectStore

logger = logging.getLogger(__name__)

AnyEvent = TypeVar("AnyEvent", bound=BaseEvent)

_FIRST_PAUSE_S = 0.02
"""The first pause between two writes. Each pause is twice as long as the one before, up to EVENT_FLUSH_S."""


class EventWriter:
    """Collects events and writes them in the background, so that no step waits for the store.

    Under one roster, a writer's name belongs to one process at a time. A restarted writer continues after its earlier
    objects. With a fence, events are dropped once another coordinator has taken over the run.

    A member `reports_usage`: now and then, and at its end, an object also says how much the member has used the store.
    """

    def __init__(
        self,
        store: ObjectStore,
        writer: str,
        roster: int = 0,
        fence: Fence | None = None,
        *,
        reports_usage: bool = False,
    ) -> None:
        self._store = store
        self._writer = writer
        self._reports_usage = reports_usage
        self._reported_s = time.monotonic()
        """Time of the last report of this member's usage."""
        self._has_reported_end = False
        self._fence = fence
        self._folder = keys.events_of(writer, roster)
        self._buffer_lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._flush_lock = threading.Lock()
        self._unwritten = b""
        self._next_number: int | None = None
        self._news = threading.Event()
        """Set when there are events to write, or the writer closes."""
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
        """Write the events so far; later ones belong to another roster."""
        self.flush()
        with self._flush_lock:
            self._folder = keys.events_of(writer, roster, change)
            self._next_number = None

    def close(self) -> None:
        """Write the remaining events; StoreError if the store still fails."""
        with self._buffer_lock:
            self._closing.set()
        self._news.set()
        self._thread.join()
        self.flush()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except StoreError as failure:
            if error is None:
                raise
            logger.warning("the last events of %s are lost: %s", self._folder, failure)  # `error` matters more

    def _flush_regularly(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            self._news.wait(USAGE_REPORT_S if self._reports_usage else None)
            self._news.clear()
            try:
                self.flush()
            except StoreError as error:
                self._news.set()
                logger.warning("events of %s could not be written, and will be retried: %s", self._folder, error)
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, EVENT_FLUSH_S)

    def flush(self) -> None:
        """Write all events so far; StoreError if the store still fails.

        An object whose write failed is written again unchanged, since a reader may already have seen it.
        """
        with self._flush_lock:
            if self._unwritten:
                self._write_object()
            with self._buffer_lock:
                lines, self._buffer = self._buffer, []
            self._unwritten = b"".join(lines) + self._usage_report()
            if self._unwritten:
                self._write_object()

    def _usage_report(self) -> bytes:
        """Return the line that reports this member's use of the store, if it is due or the last one."""
        is_end = self._closing.is_set() and not self._has_reported_end
        is_due = is_end or time.monotonic() - self._reported_s >= USAGE_REPORT_S
        if not (self._reports_usage and is_due):
            return b""
        self._reported_s, self._has_reported_end = time.monotonic(), is_end
        counts, (data_gets, data_bytes) = counts_of(self._store), fetched()
        report = StoreUsed(
            at_s=time.time(),
            member=self._writer,
            num_puts=counts.num_puts + 1,  # with the object that holds this line
            num_gets=counts.num_gets,
            num_lists=counts.num_lists,
            sent_bytes=counts.sent_bytes,
            received_bytes=counts.received_bytes,
            data_gets=data_gets,
            data_bytes=data_bytes,
        )
        return encode_events([report])

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

    The objects of a writer are numbered without gaps, so one request for the next number shows whether there is news.
    """

    def __init__(
        self,
        store: ObjectStore,
        roster: int = 0,
        change: int = 0,
        begin: Mapping[str, int] | None = None,
        *,
        max_objects: int | None = None,
    ) -> None:
        """`begin` is `next_numbers` of an earlier reader, where this one continues.

        With `max_objects`, no more objects of a writer are read that are there at first: those at its beginning and at
        its end, and a sample between them. Everything later is read.
        """
        self.has_skipped = False
        """Whether objects were left out."""
        self._max_objects = max_objects
        self._store = store
        self._roster = (roster, change)
        prefix = f"{keys.events_under(roster, change)}/"
        self._next_numbers = {folder: number for folder, number in (begin or {}).items() if folder.startswith(prefix)}
        self._unreturned: list[Event] = []

    @property
    def next_numbers(self) -> dict[str, int]:
        """The number of the next object of each writer, by its folder."""
        return dict(self._next_numbers)

    def read_new(self) -> list[Event]:
        """New events, sorted by time; none is lost if a StoreError is raised."""
        for writer in self._store.list_folders(keys.events_under(*self._roster)):
            folder = keys.events_of(writer, *self._roster)
            if folder not in self._next_numbers:
                present = sorted(_numbers(self._store.list(folder)))
                if not present:
                    continue
                sampled, first_number = _sampled(present, self._max_objects or len(present))
                self.has_skipped |= first_number > present[len(sampled)]
                for number in sampled:
                    self._read(_key(folder, number))
                self._next_numbers[folder] = first_number
            while self._read(_key(folder, self._next_numbers[folder])):
                self._next_numbers[folder] += 1
        events, self._unreturned = self._unreturned, []
        return sorted(events, key=lambda event: event.at_s)

    def _read(self, key: str) -> bool:
        """Read the events of an object; False if there is none."""
        try:
            data = bytes(self._store.get(key))
        except ObjectNotFound:
            return False
        try:
            self._unreturned += decode_events(data, f"{self._store.url}/{key}")
        except RecordError as error:  # the run does not depend on its events
            logger.warning("an object with events cannot be read: %s", error)
        return True


def last_told(store: ObjectStore, writer: str, roster: int, change: int) -> tuple[int, int]:
    """The last step and the last evaluation that a writer has reported under a roster; -1 for none.

    Writers report in order, so everything before has been reported.
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
    return step, max(evaluated, step)  # the evaluation before a step is reported before that step


def _sampled(numbers: Sequence[int], max_objects: int) -> tuple[list[int], int]:
    """Numbers to read besides the last ones, and the first of the last ones: an eighth at the beginning, half at the
    end, and the others evenly between.

    >>> _sampled(range(100), 8)
    ([0, 1, 32, 64], 96)
    >>> _sampled(range(8), 8)
    ([], 0)
    """
    if len(numbers) <= max_objects:
        return [], numbers[0]
    num_last, num_first = max_objects // 2, max_objects // 8
    begin, end = num_first, len(numbers) - num_last
    num_between = max_objects - num_last - num_first
    between = [numbers[begin + (end - begin) * part // num_between] for part in range(num_between)]
    return [*numbers[:num_first], *between], numbers[end]


def last_event(store: ObjectStore, folder: str, kind: type[AnyEvent]) -> AnyEvent | None:
    """The last event of a kind that the writer of this folder has written; None if there is none."""
    for number in sorted(_numbers(store.list(folder)), reverse=True):
        key = _key(folder, number)
        try:
            events = decode_events(bytes(store.get(key)), f"{store.url}/{key}")
        except RecordError as error:
            logger.warning("an object with events cannot be read: %s", error)
            continue
        if matching := [event for event in events if isinstance(event, kind)]:
            return matching[-1]
    return None


def _key(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.jsonl"


def _numbers(listed: Iterable[str]) -> list[int]:
    return [number for key in listed if (number := keys.number_in(key, "{:08d}.jsonl")) is not None]
