"""A sign of life in the run's folder, so that nobody goes on with a run that somebody else is at.

Create-only puts decide between two who come at the same moment; whether one that came earlier is still there, only a
sign of life tells. It is one small object, written again every few seconds and deleted at the end.
"""

import contextlib
import logging
import secrets
import threading
import time

from zooid.core import keys
from zooid.core.errors import InputError, ObjectNotFound, StoreError
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)

_BEAT_S = 5.0
"""17,280 puts a day, 9 cents on S3."""
_SILENCE_S = 15.0
"""Whoever has not been heard of for this long is taken for dead."""
_LOOK_S = 0.5


class Lease:
    """Shows from `begin` to `end` that a coordinator is at work."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._holder = secrets.token_hex(8)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat_regularly, name="lease", daemon=True)

    def begin(self) -> None:
        self._beat(0)
        self._thread.start()

    def fall_silent(self) -> None:
        """Write no more, but leave the last sign, so that others still wait for a while."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def end(self) -> None:
        """Others may go on from now on."""
        self.fall_silent()
        with contextlib.suppress(StoreError):  # silence says the same, a little later
            self._store.delete([keys.LEASE])

    def _beat_regularly(self) -> None:
        number = 1
        while not self._ending.wait(_BEAT_S):
            try:
                self._beat(number)
            except StoreError as error:
                logger.warning("the sign of life is late, and will be tried again: %s", error)
            number += 1

    def _beat(self, number: int) -> None:
        self._store.put(keys.LEASE, f"coordinator {self._holder} is at work: beat {number}\n".encode())


def is_held(store: ObjectStore) -> bool:
    """Whether a lease lies there at all, of somebody alive or dead."""
    return _read(store) is not None


def refuse_others(store: ObjectStore) -> None:
    """Raise if a coordinator, or a member that one has left behind, is at work in this folder; waits where that is not
    certain."""
    before = _read(store)
    if before is None:
        return
    messages = store.list(keys.COMM)
    deadline_s = time.monotonic() + _SILENCE_S
    while time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        now = _read(store)
        if now is None:
            return
        if now != before:
            raise InputError(
                f"another coordinator is at work in {store.url} right now; wait for its end, or end it (Ctrl-C)"
            )
    if store.list(keys.COMM) != messages:
        raise InputError(
            f"members are at work in {store.url} whose coordinator is gone; they finish the run by themselves: wait "
            f"for that, or end their processes (python -m zooid.worker {store.url}/specs/…)"
        )


def _read(store: ObjectStore) -> bytes | None:
    try:
        return bytes(store.get(keys.LEASE))
    except ObjectNotFound:
        return None
