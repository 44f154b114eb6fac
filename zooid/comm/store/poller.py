"""Takes messages out of the store as they come, looking as seldom as it can."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from zooid.comm.store.envelope import Opened, unseal
from zooid.comm.store.send_clock import Progress, edge_of
from zooid.comm.store.threads import Threads
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import COLLECTIVE, Done, Landing, Message
from zooid.core.errors import DamagedMessage, ObjectNotFound, StoreUnavailable
from zooid.schedule.polling_rules import Lags, impatient_pause, is_urgent, local_pause, pause_after_miss
from zooid.schedule.transfer_lists import DOWNLOADS
from zooid.store import ObjectStore
from zooid.store.retries import outage_of, without_patience

_MAX_THREADS = 32
_MAX_READS = 4
"""Of an object that is damaged, before it is reported."""

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.02, 1.0
"""Between two looks while the store fails."""
_DICE = random.SystemRandom()
"""Not Python's own generator, from which a job may draw meanwhile."""

Candidates = Callable[[], list[tuple[int, Message]]]


@dataclass(eq=False)
class Wanted:
    """A message that somebody waits for."""

    candidates: Candidates
    """Where it may come from: one place, or the next message of every rank."""
    claim: Callable[[int, Message], bool]
    num_bytes: int
    landing: Landing
    done: Done
    order: tuple[int, int, int] = (0, 0, 0)
    source: int | None = None
    message: Message | None = None
    place: int | None = None
    is_answer: bool = False
    expected_s: float | None = None
    """Since when it has been expected; None before that."""
    last_look_s: float = 0.0
    next_look_s: float = 0.0
    num_misses: int = 0
    num_damaged: int = 0
    num_failures: int = 0
    """How often the store has failed in a row."""
    lag_s: float = 0.0
    """How long after it is expected it is asked for."""

    @property
    def is_urgent(self) -> bool:
        return is_urgent(self.message is not None and self.message.kind == COLLECTIVE, self.num_bytes)


class Poller:
    """A few threads that look for all wanted messages of a group, the earliest of the earliest call first."""

    def __init__(
        self, store: ObjectStore, key_of: Callable[[int, Message], str], counter: Counter, progress: Progress,
        on_taken: Callable[[int, Message, str, Opened], None], patience_s: float,
    ) -> None:  # fmt: skip
        self._store = without_patience(store)
        self._outage = outage_of(store)
        self._is_local = store.url.startswith(("file://", "memory://"))
        self._patience_s = patience_s
        self._key_of = key_of
        self._counter = counter
        self._progress = progress
        self._on_taken = on_taken
        self._lags = Lags()
        self._changed = threading.Condition()
        self._wanted: list[Wanted] = []
        self._threads = Threads("zooid-receive", self._work, _MAX_THREADS)
        self._num_idle = 0
        self._num_active = 0
        self._active_bytes = 0
        self._is_closed = False
        self.trouble: str | None = None
        """Why the store fails at present."""

    def want(
        self,
        message: Message,
        source: int,
        num_bytes: int,
        landing: Landing,
        done: Done,
        place: int | None,
        is_answer: bool,
    ) -> None:
        candidates = [(source, message)]
        order = (message.kind, message.number, message.part)
        self._add(
            Wanted(lambda: candidates, _always, num_bytes, landing, done, order, source, message, place, is_answer)
        )

    def want_any(
        self,
        candidates: Candidates,
        claim: Callable[[int, Message], bool],
        num_bytes: int,
        landing: Landing,
        done: Done,
    ) -> None:
        self._add(Wanted(candidates, claim, num_bytes, landing, done, (1, 0, 0)))

    def look_again(self) -> None:
        """This rank's own sending went on, so that more is expected."""
        if not self._is_local:
            with self._changed:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._wanted.clear()
            self._changed.notify_all()

    def join(self, deadline_s: float) -> None:
        """Wait for the threads of a closed poller."""
        self._threads.join(deadline_s)

    def _add(self, wanted: Wanted) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._insert(wanted)
            self._wake()

    def _insert(self, wanted: Wanted) -> None:
        at = len(self._wanted)
        while at and self._wanted[at - 1].order > wanted.order:
            at -= 1
        self._wanted.insert(at, wanted)

    def _wake(self) -> None:
        if self._num_idle or not self._threads.start():
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                wanted = self._next()
                if wanted is None:
                    return
                self._num_active += 1
                self._active_bytes += wanted.num_bytes
                if self._wanted:
                    self._wake()
            try:
                self._look(wanted)
            except Exception as error:  # noqa: BLE001  # whoever waits must hear of it
                wanted.done(error)
            del wanted  # while it waits for the next one, the thread must not keep this one's tensor alive

    def _next(self) -> Wanted | None:
        """The wanted message to look for now, taken off the list; None when the group is closed."""
        while not self._is_closed:
            now_s = time.monotonic()
            wake_s: float | None = None
            for wanted in self._wanted:
                self._expect(wanted, now_s)
                if wanted.expected_s is None:
                    continue
                due_s = wanted.next_look_s
                if wanted.num_misses and self._num_active == 0 and wanted.is_urgent:
                    waited_s = wanted.last_look_s - wanted.expected_s
                    pause_s = impatient_pause(waited_s, self._progress.pace_s, wanted.lag_s)
                    due_s = min(due_s, wanted.last_look_s + pause_s)
                if due_s <= now_s:
                    if not self._may_start(wanted):
                        break
                    self._wanted.remove(wanted)
                    return wanted
                wake_s = due_s if wake_s is None else min(wake_s, due_s)
            wanted = None  # type: ignore[assignment]  # it may be taken, and its tensor freed, while this thread waits
            self._num_idle += 1
            self._changed.wait(None if wake_s is None else wake_s - now_s)
            self._num_idle -= 1
        return None

    def _may_start(self, wanted: Wanted) -> bool:
        return DOWNLOADS.admits(self._num_active, self._active_bytes, wanted.num_bytes)

    def _expect(self, wanted: Wanted, now_s: float) -> None:
        if wanted.expected_s is not None:
            return
        if self._is_local or wanted.message is None or wanted.source is None:
            wanted.expected_s = wanted.next_look_s = now_s
        elif wanted.place is None or self._progress.has_sent(wanted.message.number, wanted.place):
            wanted.expected_s = wanted.last_look_s = now_s
            edge = edge_of(wanted.message, wanted.source, wanted.num_bytes, wanted.is_answer)
            wanted.lag_s = self._lags.of(edge)
            wanted.next_look_s = now_s + wanted.lag_s

    def _look(self, wanted: Wanted) -> None:
        found: tuple[int, Message, str, memoryview] | None = None
        began_s = 0.0
        asked_s = time.monotonic()
        try:
            for source, message in wanted.candidates():
                key = self._key_of(source, message)
                began_s = time.perf_counter()
                try:
                    found = (source, message, key, self._store.get(key))
                    break
                except ObjectNotFound:
                    self._counter.add(num_missed_gets=1)
            self.trouble = None
            wanted.num_failures = 0
            self._outage.answered()
        except StoreUnavailable as error:
            self.trouble = str(error)
            self._outage.failed(asked_s, error, self._patience_s)
            self._counter.add(num_retries=1)
            wanted.num_failures += 1
            pause_s = min(_FIRST_BACKOFF_S * 2**wanted.num_failures, _LONGEST_BACKOFF_S)
            self._put_back(wanted, _DICE.uniform(pause_s / 2, pause_s), is_miss=True)
            return
        if found is None:
            self._put_back(wanted, None, is_miss=True)
            return
        self._take(wanted, *found, began_s, asked_s)

    def _take(
        self,
        wanted: Wanted,
        source: int,
        message: Message,
        key: str,
        sealed: memoryview,
        began_s: float,
        asked_s: float,
    ) -> None:
        try:
            opened = unseal(key, sealed)
        except DamagedMessage as error:
            wanted.num_damaged += 1
            if wanted.num_damaged < _MAX_READS:
                self._counter.add(num_retries=1)
                self._put_back(wanted, 0.02 * wanted.num_damaged, is_miss=False)
                return
            raise DamagedMessage(f"a message of rank {source}, read {_MAX_READS} times: {error}") from error
        finally:
            self._counter.add(num_gets=1, received_bytes=sealed.nbytes)
        if not wanted.claim(source, message):
            self._put_back(wanted, 0.0, is_miss=False)
            return
        self._learn(wanted, asked_s)
        self._release(wanted)
        wanted.landing.take(opened.data, began_s)
        self._counter.add(num_messages_received=1)
        self._on_taken(source, message, key, opened)
        wanted.done(None)

    def _learn(self, wanted: Wanted, asked_s: float) -> None:
        """When to ask the next time: what counts is when it was there to be taken, not how long taking it took."""
        assert wanted.expected_s is not None
        self._counter.add(waited_s=time.monotonic() - wanted.expected_s)
        if self._is_local or wanted.message is None or wanted.source is None:
            return
        edge = edge_of(wanted.message, wanted.source, wanted.num_bytes, wanted.is_answer)
        if wanted.num_misses == 0:
            self._lags.was_there(edge)
        else:
            self._lags.came_late(edge, asked_s - wanted.expected_s)

    def _put_back(self, wanted: Wanted, pause_s: float | None, *, is_miss: bool) -> None:
        now_s = time.monotonic()
        assert wanted.expected_s is not None
        waited_s = now_s - wanted.expected_s
        if is_miss:
            wanted.num_misses += 1
        if pause_s is None:
            pace_s = self._progress.pace_s
            pause_s = local_pause(waited_s) if self._is_local else pause_after_miss(waited_s, pace_s)
        wanted.last_look_s = now_s
        wanted.next_look_s = now_s + pause_s
        self._release(wanted)
        self._add(wanted)

    def _release(self, wanted: Wanted) -> None:
        with self._changed:
            self._num_active -= 1
            self._active_bytes -= wanted.num_bytes
            if self._wanted:
                self._changed.notify()


def _always(source: int, message: Message) -> bool:
    return True
