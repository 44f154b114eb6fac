"""Signs of life in the store, of members that reach nothing else: whoever is silent is lost.

Every member writes a counter, and watches the counters of the members before and after it in the roster. Only the own
clock is looked at: a member is silent for as long as its counter has not changed. Whoever notices a loss says so in one
object, which all members look for. So requests of a member do not grow with the roster.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from zooid.core.errors import ObjectNotFound, StoreError
from zooid.schedule.heartbeats import CALL_S, LOOK_S, SIGN_S, SILENCE_S
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)

_TIMES_LATEST = 3.0
"""Signs may come later than the latest that was measured, by this factor."""
_MOST_S = 20.0
_MAX_CALL_BYTES = 2**16


class SignsOfLife:
    """The thread of one member that gives signs of life and looks for those of others."""

    def __init__(self, store: ObjectStore, prefix: str, name: str, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called when a member is lost, or when another one says so."""
        self._store = store
        self._prefix = prefix
        self._name = name
        self._on_lost = on_lost
        self._names: Sequence[str] = ()
        self._watched: dict[str, _Heard] = {}
        self._call: str | None = None
        """Where a survey of the present roster is called; None once that was seen."""
        self.lost: set[str] = set()
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zooid-signs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, names: Sequence[str], call: str) -> None:
        """Watch the neighbours of this member among these, and look there for a survey."""
        place = names.index(self._name)
        near = {names[place - 1], names[(place + 1) % len(names)]} - {self._name}
        self._names = names
        self._watched = {name: self._watched.get(name) or _Heard() for name in near}
        self._call = call

    def call(self, key: str) -> None:
        """Say that a survey has begun and who is lost, and watch everybody until it is over."""
        self._call = None
        self._watched = {name: self._watched.get(name) or _Heard() for name in self._names if name != self._name}
        self._store.put(key, ",".join(sorted(self.lost)).encode())

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        next_sign_s = next_look_s = 0.0
        while not self._ended.is_set():
            now_s = time.monotonic()
            try:
                if now_s >= next_sign_s:
                    self._count += 1
                    self._store.put(self._key(self._name), str(self._count).encode())
                    next_sign_s = now_s + SIGN_S
                if now_s >= next_look_s:
                    self._look()
                    next_look_s = now_s + LOOK_S
                self._look_for_call()
            except StoreError as error:  # while the store fails, nobody is silent by his own doing
                logger.debug("no signs of life can be read: %s", error)
                for heard in self._watched.values():
                    heard.excuse()
            self._ended.wait(CALL_S)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _look(self) -> None:
        for name, heard in list(self._watched.items()):
            try:
                heard.note(bytes(self._store.get(self._key(name))))
            except ObjectNotFound:
                continue  # it has not begun
            if heard.is_lost and name not in self.lost:
                logger.warning("member %s has been silent for %.1f s", name, heard.silent_s)
                self.lost.add(name)
                self._on_lost()

    def _look_for_call(self) -> None:
        call = self._call
        if call is None:
            return
        try:
            named = bytes(self._store.get(call))[:_MAX_CALL_BYTES].decode(errors="replace")
        except ObjectNotFound:
            return
        self._call = None
        self.lost |= set(named.split(",")) & set(self._names)
        self._on_lost()


class _Heard:
    """When one member was last heard of."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._changed_s = time.monotonic()
        self._looked_s = self._changed_s
        self._latest_s = 0.0
        """The longest delay of a sign so far, in seconds after it was due."""

    def note(self, sign: bytes) -> None:
        now_s = time.monotonic()
        if sign != self._last:
            if self._last is not None:
                self._latest_s = max(self._latest_s, now_s - self._changed_s - SIGN_S - LOOK_S)
            self._last = sign
            self._changed_s = now_s
        else:  # while this member itself was held up, it could not look
            self._changed_s += max(0.0, now_s - self._looked_s - 2 * LOOK_S)
        self._looked_s = now_s

    def excuse(self) -> None:
        now_s = time.monotonic()
        self._changed_s += now_s - self._looked_s
        self._looked_s = now_s

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._changed_s

    @property
    def is_lost(self) -> bool:
        return self._last is not None and self.silent_s > min(SILENCE_S + _TIMES_LATEST * self._latest_s, _MOST_S)
