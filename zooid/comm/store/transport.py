"""Messages as objects: for members that accept no connections."""

import atexit
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence

from zooid.comm.store.envelope import Opened, seal
from zooid.comm.store.lanes import Lane
from zooid.comm.store.poller import Poller
from zooid.comm.store.send_clock import Progress
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import COLLECTIVE, Done, Landing, Message
from zooid.core.abort import Abort
from zooid.core.errors import StoreError
from zooid.core.runs.store_rules import DELETE_AFTER_S
from zooid.schedule.transfer_lists import UPLOADS, Window
from zooid.store import ObjectStore, RetryingStore

_MAX_UPLOADS = 16
_DELETE_AT = 64
"""Unneeded objects are deleted when there are this many, or when they are older than DELETE_AFTER_S."""
_LEAVE_TIMEOUT_S = 60.0


_EXIT_TIMEOUT_S = 5.0

_transports: "weakref.WeakSet[StoreTransport]" = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    for transport in list(_transports):
        transport.stop(deadline_s)


class StoreTransport:
    """One rank of one group in an object store.

    An object is deleted by its writer once all its readers have said, in what they send, that they are past its call;
    a point-to-point message by its reader. What is left at the end goes when the last rank leaves (see `meeting`).
    """

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        rank: int,
        *,
        timeout_s: float,
        counter: Counter,
    ) -> None:
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self.lost: set[int] = set()
        self._rank = rank
        self._prefix = prefix
        self._counter = counter
        self._closed = Abort()
        self._store = RetryingStore(
            objects, self._closed, give_up_s=timeout_s, on_retry=lambda: counter.add(num_retries=1)
        )
        self._uploads = Lane("zooid-send", max_threads=_MAX_UPLOADS, window=UPLOADS)
        self._chores = Lane("zooid-delete", max_threads=1, window=Window(min_at_once=1, max_bytes=0))
        self._progress = Progress()
        self._poller = Poller(objects, self._key_of, counter, self._progress, self._took, timeout_s)
        self._lock = threading.Lock()
        self._watermark = -1
        self._heard: defaultdict[int, int] = defaultdict(lambda: -1)
        self._unread: list[tuple[int, tuple[int, ...], str]] = []
        """Objects of this rank that some reader may still want: call, readers, key."""
        self._doomed: list[str] = []
        _transports.add(self)
        self._deleted_s = time.monotonic()

    @property
    def trouble(self) -> str | None:
        return self._poller.trouble

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, place: int | None = None
    ) -> None:
        key = self._key_of(self._rank, message, readers[0])

        def upload() -> None:
            try:
                sealed = seal(key, data, self._watermark)
                self._store.put(key, sealed)
            except Exception as error:  # noqa: BLE001  # whoever waits must hear of it
                done(error)
                return
            self._counter.add(num_puts=1, num_messages_sent=1, sent_bytes=sealed.nbytes)
            if message.kind == COLLECTIVE:
                with self._lock:
                    self._unread.append((message.number, tuple(readers), key))
            if place is not None:
                self._progress.note_sent(message.number, place)
            done(None)
            self._poller.look_again()

        self._uploads.submit((message.kind, message.number, message.part), data.nbytes, upload)

    def receive(
        self,
        message: Message,
        source: int,
        num_bytes: int,
        landing: Landing,
        done: Done,
        place: int | None = None,
        is_answer: bool = False,
    ) -> None:
        self._poller.want(message, source, num_bytes, landing, done, place, is_answer)

    def receive_any(
        self,
        candidates: Callable[[], list[tuple[int, Message]]],
        claim: Callable[[int, Message], bool],
        num_bytes: int,
        landing: Landing,
        done: Done,
    ) -> None:
        self._poller.want_any(candidates, claim, num_bytes, landing, done)

    def finished(self, number: int) -> None:
        self._watermark = number
        self._progress.forget(number)
        self._delete_read()

    def close(self, reason: str | None) -> None:
        self._poller.close()
        if reason is None:
            self._uploads.drain(_LEAVE_TIMEOUT_S)
            self._chores.drain(_LEAVE_TIMEOUT_S)
        self._closed.set(reason or "the process group was destroyed")
        self._uploads.close()
        self._chores.close()

    def stop(self, deadline_s: float) -> None:
        """End all threads: one that is still in a request when the interpreter goes would take the process with it."""
        self.close("the process is ending")
        for part in (self._poller, self._uploads, self._chores):
            part.join(deadline_s)

    def _key_of(self, source: int, message: Message, reader: int | None = None) -> str:
        if message.kind == COLLECTIVE:
            return f"{self._prefix}/calls/{message.number:08d}-{message.part:06d}"
        reader = self._rank if reader is None else reader
        return f"{self._prefix}/messages/{source}-{reader}/{message.tag}/{message.number:08d}"

    def _took(self, source: int, message: Message, key: str, opened: Opened) -> None:
        with self._lock:
            self._heard[source] = max(self._heard[source], opened.watermark)
            if message.kind != COLLECTIVE:
                self._doomed.append(key)
        if message.kind != COLLECTIVE:
            self._delete_some()

    def _delete_read(self) -> None:
        """Mark what all readers are past."""
        with self._lock:
            kept = []
            for number, readers, key in self._unread:
                if all(self._heard[reader] >= number for reader in readers):
                    self._doomed.append(key)
                else:
                    kept.append((number, readers, key))
            self._unread = kept
        self._delete_some()

    def _delete_some(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            is_due = len(self._doomed) >= _DELETE_AT or now_s - self._deleted_s > DELETE_AFTER_S
            if not self._doomed or not is_due:
                return
            doomed, self._doomed = self._doomed, []
            self._deleted_s = now_s
        self._chores.submit((), 0, lambda: self._delete(doomed))

    def _delete(self, keys: list[str]) -> None:
        try:
            self._store.delete(keys)
        except StoreError:
            return  # they go when the last rank leaves
        self._counter.add(num_deletes=1)
