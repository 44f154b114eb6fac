"""A sign of life in the run's folder, so that nobody goes on with a run that somebody else is at.

Create-only puts decide between two who come at the same moment; whether one that came earlier is still there, only a
sign of life tells. It is one small object for each claim, written again every few seconds and deleted at the end.
On the same machine the process itself is looked for, so that one that was killed is known at once.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping

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
"""Whoever has not been heard of for this long is taken for dead: three beats may be late by a second."""
_LOOK_S = 0.5
_LONGEST_LOOK_S = 1.0
"""What one look counts for at most: while the store does not answer, nobody can be heard."""

_at_work: set[str] = set()
"""Holders in this process: one that could not remove its lease has ended, although its process lives."""


class LeaseSign(FileRecord, frozen=True, kw_only=True, tag="lease"):
    """What a coordinator writes to show that it lives."""

    holder: str
    process: ProcessMark
    beat: int
    told: dict[str, int] = field(default_factory=dict)
    """How far it has passed events on, for whoever has to go on from there: see `Relay.told`."""


class Lease:
    """Shows from `begin` to `end` that the writer of a claim is at work."""

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
        self._shown_s = 0.0
        """When the last sign was written."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat_regularly, name="lease", daemon=True)

    def begin(self) -> None:
        _at_work.add(self._holder)
        self._beat(0)
        self._thread.start()

    def renew(self) -> None:
        """Write a sign now: another who has just lost the race for the same claim may have replaced the last one."""
        self._beat(0)

    def is_replaced(self) -> bool:
        """Whether somebody else has gone on with the run. Nobody has while the last sign is fresh.

        Else the store is asked once. One that does not answer cannot be asked by anybody else either.
        """
        if not self._is_lost and time.monotonic() - self._shown_s >= SILENCE_S:
            with contextlib.suppress(StoreError):
                self._is_lost = self._hasty_fence.is_superseded()
        return self._is_lost

    def check(self) -> None:
        """Raise Superseded where somebody else has gone on with the run; sends nothing."""
        if self._is_lost:
            raise self._fence.error()

    def fall_silent(self) -> None:
        """Write no more, but leave the last sign, so that others still wait for a while."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def end(self) -> None:
        """Others may go on from now on. Whoever was replaced leaves its sign to its successor."""
        self.fall_silent()
        _at_work.discard(self._holder)
        if self.is_replaced():
            return
        with contextlib.suppress(StoreError):  # silence says the same, a little later
            sign = _sign(_read(self._store, self._key))
            if sign is not None and sign.holder == self._holder:
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
                logger.warning("the sign of life is late, and will be tried again: %s", error)
            number += 1

    def _beat(self, number: int) -> None:
        began_s = time.monotonic()
        sign = LeaseSign(holder=self._holder, process=self._process, beat=number, told=dict(self._told()))
        self._store.put(self._key, encode_record(sign))
        self._shown_s = began_s


def is_held(store: ObjectStore, number: int) -> bool:
    """Whether a lease of this claim lies there at all, of somebody alive or dead."""
    return _read(store, keys.lease(number)) is not None


def told_until(store: ObjectStore, number: int) -> dict[str, int]:
    """How far the holder of this claim had passed events on, as far as its lease says."""
    sign = _sign(_read(store, keys.lease(number)))
    return {} if sign is None else sign.told


def refuse_living(store: ObjectStore, number: int) -> bool:
    """Raise if the coordinator that wrote the newest claim is at work; waits where that is not certain.

    True where it is dead and has left its lease: its members may still be at work. False where it has ended properly.
    """
    before = _read(store, keys.lease(number))
    if before is None:
        return False
    sign = _sign(before)
    lives = None if sign is None else _lives(sign)
    if lives is None:
        lives = _is_heard(store, keys.lease(number), before)
    if lives:
        raise InputError(
            f"another coordinator is at work in {store.url} right now; wait for its end, or end it (Ctrl-C)"
        )
    return is_held(store, number)


def _lives(sign: LeaseSign) -> bool | None:
    """Whether the holder is at work, where its process can be looked for; None where it cannot, or was stopped."""
    if sign.process == own_mark():
        return sign.holder in _at_work
    if is_stopped(sign.process):
        return None
    return is_alive(sign.process)


def _is_heard(store: ObjectStore, key: str, before: bytes) -> bool:
    """Whether the lease changes within the time after which its holder is taken for dead."""
    waited_s = 0.0
    last_s = time.monotonic()
    while waited_s < SILENCE_S:
        time.sleep(_LOOK_S)
        now = _read(store, key)
        if now != before:
            return now is not None
        now_s = time.monotonic()
        waited_s += min(now_s - last_s, max(_LONGEST_LOOK_S, _LOOK_S))
        last_s = now_s
    return False


def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return bytes(store.get(key))
    except ObjectNotFound:
        return None


def _sign(data: bytes | None) -> LeaseSign | None:
    """What a lease says; None where there is none, or where it says nothing that can be read."""
    if data is None:
        return None
    with contextlib.suppress(RecordError):
        return decode_record(data, LeaseSign, "the lease")
    return None
