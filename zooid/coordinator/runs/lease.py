"""Leases: heartbeats in a run's folder, so that nobody takes over a run whose coordinator is alive.

Create-only puts decide between two coordinators that come at the same time; only a heartbeat tells whether an earlier
one is still alive. It is one small object per claim, rewritten every few seconds and deleted at the end. On the same
machine the process itself is checked, so that a killed one is noticed at once.
"""

import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import field

from zooid.core.errors import InputError, ObjectNotFound, RecordError, StoreError
from zooid.core.records import FileRecord, decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.liveness import ProcessMark, is_alive, is_stopped, own_mark
from zooid.core.runs.store_rules import LEASE_HEARTBEAT_S
from zooid.store import ObjectStore
from zooid.store.fences import Fence
from zooid.store.retries import without_patience

logger = logging.getLogger(__name__)

SILENCE_S = 10.0
"""Time of silence after which a coordinator counts as dead: three beats may be late by a second."""
_POLL_S = 0.5
_MAX_POLL_S = 1.0
"""Maximum time that one poll counts as silence, because a store that does not answer delivers no heartbeats."""

_live_holders: set[str] = set()
"""Live holders in this process. One that could not remove its lease has ended, although its process is alive."""


class LeaseHeartbeat(FileRecord, frozen=True, kw_only=True, tag="lease"):
    """The heartbeat of a coordinator."""

    holder: str
    process: ProcessMark
    beat: int
    told: dict[str, int] = field(default_factory=dict)
    """Progress of its relay, for a successor; see `Relay.told`."""


class Lease:
    """Writes heartbeats from `begin` to `end`, to show that the writer of a claim is alive."""

    def __init__(
        self, store: ObjectStore, number: int, fence: Fence, told: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._store = store
        self._key = keys.lease(number)
        self._fence = fence
        self._hasty_fence = Fence(without_patience(store), number, coordinates=True)
        self._told = told
        self._holder = secrets.token_hex(8)
        self._process = own_mark()
        self._is_lost = False
        self._last_beat_s = 0.0
        """Time of the last heartbeat."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat_regularly, name="lease", daemon=True)

    def begin(self) -> None:
        _live_holders.add(self._holder)
        self._beat(0)
        self._thread.start()

    def renew(self) -> None:
        """Write a heartbeat now, because the loser of a race for the same claim may have overwritten the last one."""
        self._beat(0)

    def is_replaced(self) -> bool:
        """Whether another coordinator has taken over the run. None can while the last heartbeat is fresh.

        Otherwise the store is asked once. If it does not answer, it answers no other coordinator either.
        """
        if not self._is_lost and time.monotonic() - self._last_beat_s >= SILENCE_S:
            with contextlib.suppress(StoreError):
                self._is_lost = self._hasty_fence.is_superseded()
        return self._is_lost

    def check(self) -> None:
        """Raise Superseded if another coordinator is known to have taken over the run; sends no request."""
        if self._is_lost:
            raise self._fence.error()

    def fall_silent(self) -> None:
        """Stop writing, but leave the last heartbeat, so that others still wait for a while."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def end(self) -> None:
        """Release the lease, so that others may take over the run. A replaced holder leaves it to its successor."""
        self.fall_silent()
        _live_holders.discard(self._holder)
        if self.is_replaced():
            return
        with contextlib.suppress(StoreError):  # a lease that stays expires a little later
            heartbeat = _decode(_read(self._store, self._key))
            if heartbeat is not None and heartbeat.holder == self._holder:
                self._store.delete([self._key])

    def _beat_regularly(self) -> None:
        number = 1
        while not self._ending.wait(LEASE_HEARTBEAT_S):
            try:
                if self._fence.is_superseded():
                    self._is_lost = True
                    return
                self._beat(number)
            except StoreError as error:
                logger.warning("a heartbeat could not be written, and will be retried: %s", error)
            number += 1

    def _beat(self, number: int) -> None:
        began_s = time.monotonic()
        heartbeat = LeaseHeartbeat(holder=self._holder, process=self._process, beat=number, told=dict(self._told()))
        self._store.put(self._key, encode_record(heartbeat))
        self._last_beat_s = began_s


def is_held(store: ObjectStore, number: int) -> bool:
    """Whether there is a lease of this claim, with a live or a dead holder."""
    return _read(store, keys.lease(number)) is not None


def relayed_until(store: ObjectStore, number: int) -> dict[str, int]:
    """Return the progress of the relay of this claim's holder, as far as its lease says."""
    heartbeat = _decode(_read(store, keys.lease(number)))
    return {} if heartbeat is None else heartbeat.told


LeaseState = Literal["alive", "silent", "gone", "unsure"]
"""A coordinator that ended properly is `gone`, and one that was killed or cut off is `silent`. One on another machine
is `unsure` until it was heard, or until it counts as dead."""


class LeaseObserver:
    """Tells, look by look, whether the coordinator of a claim is alive."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        self.number = number
        self._store = store
        self._state: LeaseState = "unsure"
        self._data: bytes | None = None
        self._looked_s: float | None = None
        self._silent_s = 0.0
        """Time without a change, as far as looks have confirmed it."""

    def look(self) -> LeaseState:
        """Look at the lease, unless the last look was a moment ago."""
        now_s = time.monotonic()
        passed_s = math.inf if self._looked_s is None else now_s - self._looked_s
        if passed_s < _POLL_S:
            return self._state
        data = _read(self._store, keys.lease(self.number))
        if self._looked_s is not None:
            has_changed = data is not None and data != self._data
            self._silent_s = 0.0 if has_changed else self._silent_s + min(passed_s, _MAX_POLL_S)
            if has_changed:
                self._state = "alive"
        self._data, self._looked_s = data, now_s
        heartbeat = _decode(data)
        is_live = None if heartbeat is None else _is_live(heartbeat)
        if data is None:
            self._state = "gone"
        elif is_live is not None:
            self._state = "alive" if is_live else "silent"
        elif self._silent_s >= SILENCE_S:
            self._state = "silent"
        elif self._state != "alive":
            self._state = "unsure"
        return self._state


def reject_live_coordinator(store: ObjectStore, number: int) -> bool:
    """Raise if the coordinator of the newest claim is alive; wait for a heartbeat if that is uncertain.

    Returns True if it is dead and has left its lease, so that its members may still run; False if it ended properly.
    """
    observer = LeaseObserver(store, number)
    while (state := observer.look()) == "unsure":
        time.sleep(_POLL_S)
    if state == "alive":
        raise InputError(
            f"another coordinator supervises the run in {store.url} right now; wait for its end, or end it: "
            f"zooid stop {store.url}"
        )
    return state == "silent"


def _is_live(heartbeat: LeaseHeartbeat) -> bool | None:
    """Whether the holder is alive; None if its process is stopped or cannot be seen."""
    if heartbeat.process == own_mark():
        return heartbeat.holder in _live_holders
    if is_stopped(heartbeat.process):
        return None
    return is_alive(heartbeat.process)


def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return bytes(store.get(key))
    except ObjectNotFound:
        return None


def _decode(data: bytes | None) -> LeaseHeartbeat | None:
    """Decode a lease; None if there is none, or if it is unreadable."""
    if data is None:
        return None
    with contextlib.suppress(RecordError):
        return decode_record(data, LeaseHeartbeat, "the lease")
    return None
