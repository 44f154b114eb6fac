"""Polls the store for expected messages, with as few requests as it can."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable

from zooid.comm.store.envelope import Opened, unseal
from zooid.comm.store.message_lines import MessageLines
from zooid.comm.store.polled_receive import Edge, PolledReceive
from zooid.comm.store.send_clock import Progress
from zooid.comm.store.threads import Threads
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import POINT_TO_POINT, Candidates, Claim, Done, Landing, Message
from zooid.core.errors import DamagedMessage, ObjectNotFound, StoreUnavailable
from zooid.schedule.arrival_times import pause_before_arrival
from zooid.schedule.polling_rules import (
    LOCAL_BEHIND_S,
    Lags,
    behind_pause,
    call_pause,
    impatient_pause,
    local_lag_after,
    local_pause,
    pause_after_miss,
)
from zooid.schedule.transfer_lists import DOWNLOADS
from zooid.store import ObjectStore
from zooid.store.retries import outage_of, without_patience

_MAX_THREADS = 32
_MAX_READS = 4
"""Number of reads of a damaged object before it is reported."""
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.02, 1.0
"""The backoff between two requests while the store fails."""
_RANDOM = random.SystemRandom()
"""Not Python's global generator, from which the job may draw at the same time."""


class Poller(Threads[PolledReceive]):
    """A few threads that poll for all expected messages of a group, those of the earliest call first."""

    def __init__(
        self, store: ObjectStore, key_of: Callable[[int, Message], str], counter: Counter, progress: Progress,
        on_received: Callable[[int, Message, str, Opened], None], timeout_s: float,
    ) -> None:  # fmt: skip
        super().__init__("zooid-receive", _MAX_THREADS)
        self._store = without_patience(store)
        self._outage = outage_of(store)
        self._is_local = store.url.startswith(("file://", "memory://"))
        self._timeout_s = timeout_s
        self._key_of = key_of
        self._counter = counter
        self._progress = progress
        self._on_received = on_received
        self._lags = Lags()
        self._stored_lines = MessageLines()
        self._local_lags: dict[Edge, float] = {}
        """The usual time until a message of a collective call comes, by edge, in a folder of this machine."""
        self._lines: defaultdict[int, list[PolledReceive]] = defaultdict(list)
        """Receives from each rank in a folder of this machine, in the order in which they were asked for."""
        self._line_lags: dict[tuple[int, int], float] = {}
        """The usual time from one message of a rank to its next, by rank and tag, in a folder of this machine.

        The first message of a pipeline comes sooner than others, because nobody has to wait for its counterpart.
        """
        self._alarm_s = math.inf
        """When a waiting thread will wake up by itself. Without it, all threads would wake up for every poll."""
        self.trouble: str | None = None
        """Why the store fails at present; None while it works."""

    def receive(
        self,
        message: Message,
        source: int,
        num_bytes: int,
        landing: Landing,
        done: Done,
        expected_after: int | None = None,
        is_answer: bool = False,
    ) -> None:
        candidates = [(source, message)]
        order = (message.kind, message.number, message.part)
        self._begin(
            PolledReceive(
                lambda: candidates, _always, num_bytes, landing, done, order, source, message, expected_after, is_answer
            )
        )

    def receive_any(self, candidates: Candidates, claim: Claim, num_bytes: int, landing: Landing, done: Done) -> None:
        self._begin(PolledReceive(candidates, claim, num_bytes, landing, done, (1, 0, 0)))

    def note_sent(self, message: Message, reader: int) -> None:
        """Poll again, since this rank has sent a message and may now expect others."""
        if not self._is_local:
            with self._changed:
                if message.kind == POINT_TO_POINT:
                    self._stored_lines.note_sent(reader, time.monotonic())
                self._changed.notify()

    def close(self) -> None:
        super().close()
        with self._changed:
            self._lines.clear()
            self._stored_lines.clear()

    def _begin(self, receive: PolledReceive) -> None:
        with self._changed:
            if self._is_closed:
                return
            if self._is_in_stored_line(receive):
                self._stored_lines.add(receive)
            elif receive.line is not None:
                self._lines[receive.line].append(receive)
            self._add(receive)
            self._wake_one()

    def _add(self, receive: PolledReceive) -> None:
        """Queue a receive. The lock is held."""
        index = len(self._queue)
        while index and self._queue[index - 1].order > receive.order:
            index -= 1
        self._queue.insert(index, receive)

    def _wake_one(self) -> None:
        if self._num_idle or not self._start_thread():
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                receive = self._next()
                if receive is None:
                    return
                self._num_active += 1
                self._active_bytes += receive.num_bytes
                receive.is_in_flight = True
                if self._is_in_stored_line(receive):
                    self._stored_lines.begin_poll(receive, time.monotonic())
                # a poll of a folder is so short that only another one that is due now needs a thread meanwhile
                if self._is_due() if self._is_local else self._queue:
                    self._wake_one()
            try:
                self._poll(receive)
            except Exception as error:  # noqa: BLE001  # the waiter must hear of it
                with self._changed:
                    self._leave_line(receive)
                receive.done(error)
            del receive  # while it waits for the next one, the thread must not keep this one's tensor alive

    def _next(self) -> PolledReceive | None:
        """Remove and return the receive to poll for now, when there is one; None when the group is closed."""
        while not self._is_closed:
            now_s = time.monotonic()
            wake_s = math.inf
            for receive in self._queue:
                self._expect(receive, now_s)
                if receive.expected_s is None and receive.line is None:
                    continue
                due_s = self._due_s(receive)
                if due_s <= now_s:
                    if not DOWNLOADS.admits(self._num_active, self._active_bytes, receive.num_bytes):
                        break
                    self._queue.remove(receive)
                    return receive
                wake_s = min(wake_s, due_s)
            receive = None  # type: ignore[assignment]  # its tensor may be freed while this thread waits
            is_alarm = wake_s < self._alarm_s
            if is_alarm:
                self._alarm_s = wake_s
            self._num_idle += 1
            self._changed.wait(wake_s - now_s if is_alarm else None)
            self._num_idle -= 1
            if is_alarm and self._alarm_s == wake_s:
                self._alarm_s = math.inf
        return None

    def _due_s(self, receive: PolledReceive) -> float:
        """When to poll for a receive: sooner after a miss if it is urgent, and nothing else is in flight."""
        due_s = receive.next_poll_s
        is_awaited = receive.line is None and receive.num_misses and self._num_active == 0
        if self._is_local or not is_awaited or not receive.is_urgent or receive.expected_s is None:
            return due_s
        waited_s = receive.last_poll_s - receive.expected_s
        pause_s = impatient_pause(waited_s, self._progress.pace_s, receive.lag_s)
        return min(due_s, receive.last_poll_s + pause_s)

    def _is_due(self) -> bool:
        """Whether a receive in a folder can be polled for now. The lock is held."""
        now_s = time.monotonic()
        return any(receive.expected_s is None or receive.next_poll_s <= now_s for receive in self._queue)

    def _expect(self, receive: PolledReceive, now_s: float) -> None:
        if receive.expected_s is not None:
            return
        if self._is_local or receive.message is None:
            receive.expected_s = receive.next_poll_s = now_s
            return
        after = receive.expected_after
        if receive.line is None and (after is None or self._progress.has_sent(receive.message.number, after)):
            receive.begin_to_expect(now_s, self._lags.of(receive.edge))

    def _poll(self, receive: PolledReceive) -> None:
        answer: tuple[int, Message, str, memoryview] | None = None
        began_s = 0.0
        asked_s = time.monotonic()
        try:
            for source, message in receive.candidates():
                key = self._key_of(source, message)
                began_s = time.perf_counter()
                try:
                    answer = (source, message, key, self._store.get(key))
                    break
                except ObjectNotFound:
                    self._counter.add(num_missed_gets=1)
            self.trouble = None
            receive.num_failures = 0
            self._outage.answered()
        except StoreUnavailable as error:
            self.trouble = str(error)
            self._outage.failed(asked_s, error, self._timeout_s)
            self._counter.add(num_retries=1)
            receive.num_failures += 1
            pause_s = min(_MIN_BACKOFF_S * 2**receive.num_failures, _MAX_BACKOFF_S)
            self._poll_later(receive, _RANDOM.uniform(pause_s / 2, pause_s), is_miss=True)
            return
        if answer is None:
            receive.missing_s = asked_s
            self._poll_later(receive, None, is_miss=True)
            return
        self._take(receive, *answer, began_s, asked_s)

    def _take(
        self,
        receive: PolledReceive,
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
            receive.num_damaged += 1
            if receive.num_damaged < _MAX_READS:
                self._counter.add(num_retries=1)
                self._poll_later(receive, 0.02 * receive.num_damaged, is_miss=False)
                return
            raise DamagedMessage(f"a message of rank {source}, read {_MAX_READS} times: {error}") from error
        finally:
            self._counter.add(num_gets=1, received_bytes=sealed.nbytes)
        if not receive.claim(source, message):
            self._poll_later(receive, 0.0, is_miss=False)
            return
        self._learn(receive, asked_s, opened.sealed_s)
        self._leave(receive)
        receive.landing.take(opened.data, began_s)
        self._counter.add(num_messages_received=1)
        self._on_received(source, message, key, opened)
        receive.done(None)

    def _learn(self, receive: PolledReceive, asked_s: float, sealed_s: float) -> None:
        """Learn the lag of such messages from when the message was there, however long its download took."""
        expected_s = receive.begun_s if receive.expected_s is None else receive.expected_s
        self._counter.add(waited_s=time.monotonic() - expected_s)
        edge = receive.edge
        if self._is_in_stored_line(receive):
            with self._changed:
                self._stored_lines.learn(receive, asked_s, sealed_s)
            return
        if edge is None or receive.expected_s is None:
            return
        if self._is_local:
            self._local_lags[edge] = local_lag_after(self._local_lags.get(edge, 0.0), asked_s - receive.expected_s)
        elif receive.num_misses == 0:
            self._lags.was_there(edge)
        else:
            self._lags.came_late(edge, asked_s - receive.expected_s)

    def _poll_later(self, receive: PolledReceive, pause_s: float | None, *, is_miss: bool) -> None:
        now_s = time.monotonic()
        if is_miss:
            receive.num_misses += 1
        if pause_s is None:
            pause_s = self._pause_after_miss(receive, now_s)
        receive.last_poll_s = now_s
        receive.next_poll_s = now_s + pause_s
        with self._changed:
            self._release(receive)
            if self._is_in_stored_line(receive):
                self._stored_lines.stay(receive, now_s)
            if not self._is_closed:
                self._add(receive)  # this thread looks at the queue next, so that nobody else has to wake up

    def _pause_after_miss(self, receive: PolledReceive, now_s: float) -> float:
        if receive.expected_s is None:
            return behind_pause(now_s - receive.begun_s)
        if self._is_in_stored_line(receive):
            return pause_before_arrival(now_s - receive.expected_s, receive.arrival)
        waited_s = now_s - receive.expected_s
        return (
            self._local_pause(receive, waited_s)
            if self._is_local
            else pause_after_miss(waited_s, self._progress.pace_s)
        )

    def _local_pause(self, receive: PolledReceive, waited_s: float) -> float:
        if receive.edge is None:
            return local_pause(waited_s)
        if receive.line is None:
            return call_pause(waited_s, self._local_lags.get(receive.edge, 0.0))
        line = self._lines.get(receive.line)
        if line and line[0] is not receive:
            return LOCAL_BEHIND_S
        return local_pause(waited_s, self._line_lags.get(_place(receive), 0.0))

    def _leave(self, receive: PolledReceive) -> None:
        """Let other receives begin, since this one has its message."""
        with self._changed:
            self._release(receive)
            self._leave_line(receive)
            if self._queue:
                self._changed.notify()

    def _leave_line(self, receive: PolledReceive) -> None:
        """Expect the next message of the line from now on. The lock is held."""
        if self._is_in_stored_line(receive):
            self._stored_lines.leave(receive, time.monotonic())
            return
        line = self._lines.get(receive.line) if receive.line is not None else None
        if line and receive in line:
            now_s, was_first = time.monotonic(), line[0] is receive
            line.remove(receive)
            if was_first:
                waited_s = 0.0 if receive.expected_s is None else now_s - receive.expected_s
                place = _place(receive)
                self._line_lags[place] = local_lag_after(self._line_lags.get(place, 0.0), waited_s)
            if was_first and line:
                line[0].expected_s = line[0].next_poll_s = now_s

    def _is_in_stored_line(self, receive: PolledReceive) -> bool:
        return receive.line is not None and not self._is_local and not self._is_closed

    def _release(self, receive: PolledReceive) -> None:
        """Count a receive as no longer in flight. The lock is held."""
        receive.is_in_flight = False
        self._num_active -= 1
        self._active_bytes -= receive.num_bytes


def _place(receive: PolledReceive) -> tuple[int, int]:
    """Where messages come at about the same time in every step: the rank that sends them, and their tag."""
    assert receive.message is not None
    assert receive.line is not None
    return receive.line, receive.message.tag


def _always(source: int, message: Message) -> bool:
    return True
