"""Messages as objects in a store, for members that accept no connections."""

import atexit
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence

from zooid.comm.store.envelope import Opened, seal
from zooid.comm.store.poller import Poller
from zooid.comm.store.request_queue import RequestQueue
from zooid.comm.store.send_clock import Progress
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import COLLECTIVE, Done, Message
from zooid.core.abort import Abort
from zooid.core.errors import StoreError
from zooid.core.runs.store_rules import DELETE_AFTER_S
from zooid.schedule.transfer_lists import UPLOADS, FlightWindow
from zooid.store import ObjectStore, RetryingStore

_MAX_UPLOADS = 16
_DELETE_AT = 64
"""Unneeded objects are deleted when there are this many, or when the last deletion was DELETE_AFTER_S ago."""
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

    The writer deletes an object once the messages of all its readers show that they have finished its call. The reader
    deletes a point-to-point message. The last rank to leave deletes the rest (see `rendezvous`).
    """

    def __init__(self, objects: ObjectStore, prefix: str, rank: int, *, timeout_s: float) -> None:
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._rank = rank
        self._prefix = prefix
        self.counter = counter = Counter()
        self._closed = Abort()
        self._store = RetryingStore(
            objects, self._closed, give_up_s=timeout_s, on_retry=lambda: counter.add(num_retries=1)
        )
        self._uploads = RequestQueue("zooid-send", max_threads=_MAX_UPLOADS, window=UPLOADS)
        self._deletes = RequestQueue("zooid-delete", max_threads=1, window=FlightWindow(min_at_once=1, max_bytes=0))
        self._progress = Progress()
        self._poller = Poller(objects, self._key_of, counter, self._progress, self._on_received, timeout_s)
        self.receive, self.receive_any = self._poller.receive, self._poller.receive_any
        self._lock = threading.Lock()
        self._watermark = -1
        self._heard: defaultdict[int, int] = defaultdict(lambda: -1)
        """The latest watermark of each rank."""
        self._unread: list[tuple[int, tuple[int, ...], str]] = []
        """Objects of this rank that some reader may still need: call, readers, key."""
        self._unneeded: list[str] = []
        """Keys of objects to delete."""
        self._deleted_s = time.monotonic()
        _transports.add(self)

    @property
    def trouble(self) -> str | None:
        return self._poller.trouble

    def send(
        self, message: Message, data: memoryview, readers: Sequence[int], done: Done, send_index: int | None = None
    ) -> None:
        key = self._key_of(self._rank, message, readers[0])

        def upload() -> None:
            try:
                sealed = seal(key, data, self._watermark, time.monotonic())
                self._store.put(key, sealed)
            except Exception as error:  # noqa: BLE001  # the waiter must hear of it
                done(error)
                return
            self.counter.add(num_puts=1, num_messages_sent=1, sent_bytes=sealed.nbytes)
            if message.kind == COLLECTIVE:
                with self._lock:
                    self._unread.append((message.number, tuple(readers), key))
            if send_index is not None:
                self._progress.note_sent(message.number, send_index)
            done(None)
            self._poller.note_sent(message, readers[0])

        self._uploads.submit((message.kind, message.number, message.part), data.nbytes, upload)

    def finished(self, number: int) -> None:
        self._watermark = number
        self._progress.forget(number)
        self._delete_read()

    def close(self, reason: str | None) -> None:
        self._poller.close()
        if reason is None:
            self._uploads.drain(_LEAVE_TIMEOUT_S)
            self._deletes.drain(_LEAVE_TIMEOUT_S)
        self._closed.set(reason or "the process group was destroyed")
        self._uploads.close()
        self._deletes.close()

    def stop(self, deadline_s: float) -> None:
        """End all threads: one that is still in a request when the interpreter exits would crash the process."""
        self.close("the process is ending")
        for part in (self._poller, self._uploads, self._deletes):
            part.join(deadline_s)

    def _key_of(self, source: int, message: Message, reader: int | None = None) -> str:
        if message.kind == COLLECTIVE:
            return f"{self._prefix}/calls/{message.number:08d}-{message.part:06d}"
        reader = self._rank if reader is None else reader
        return f"{self._prefix}/messages/{source}-{reader}/{message.tag}/{message.number:08d}"

    def _on_received(self, source: int, message: Message, key: str, opened: Opened) -> None:
        with self._lock:
            self._heard[source] = max(self._heard[source], opened.watermark)
            if message.kind != COLLECTIVE:
                self._unneeded.append(key)
        if message.kind != COLLECTIVE:
            self._delete_unneeded()

    def _delete_read(self) -> None:
        """Delete objects whose readers have all finished the call."""
        with self._lock:
            unread = []
            for number, readers, key in self._unread:
                if all(self._heard[reader] >= number for reader in readers):
                    self._unneeded.append(key)
                else:
                    unread.append((number, readers, key))
            self._unread = unread
        self._delete_unneeded()

    def _delete_unneeded(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            is_due = len(self._unneeded) >= _DELETE_AT or now_s - self._deleted_s > DELETE_AFTER_S
            if not self._unneeded or not is_due:
                return
            unneeded, self._unneeded = self._unneeded, []
            self._deleted_s = now_s
        self._deletes.submit((), 0, lambda: self._delete(unneeded))

    def _delete(self, keys: list[str]) -> None:
        try:
            self._store.delete(keys)
        except StoreError:
            return  # the last rank to leave deletes them
        self.counter.add(num_deletes=1)
