"""Heartbeats of members that reach only a store: a member without a heartbeat is lost.

Every member writes a counter, and watches the counters of the members before and after it in the roster. Silence is
measured by the watcher's own clock, from when a counter last changed. A member that notices a lost member announces a
survey in one object, which all members look for. So the requests of a member do not grow with the roster.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from zooid.core.errors import ObjectNotFound, StoreError
from zooid.schedule.heartbeats import CALL_S, HEARTBEAT_S, LOOK_S, SILENCE_S
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)

_DELAY_FACTOR = 3.0
"""A heartbeat may be delayed by this factor times the longest measured delay."""
_MAX_SILENCE_S = 20.0
_MAX_ANNOUNCEMENT_BYTES = 2**16


class StoreHeartbeats:
    """The thread of one member that writes heartbeats and looks for those of others."""

    def __init__(self, store: ObjectStore, prefix: str, name: str, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called when a member is lost, or when another member announces so."""
        self._store = store
        self._prefix = prefix
        self._name = name
        self._on_lost = on_lost
        self._names: Sequence[str] = ()
        self._watched: dict[str, _Watched] = {}
        self._survey_key: str | None = None
        """Key under which a survey of the present roster is announced; None once that was seen."""
        self.lost: set[str] = set()
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zooid-heartbeats", daemon=True)

    def start(self) -> None:
        """Begin with a first heartbeat, without which others would take this member for one that has not begun."""
        with suppress(StoreError):
            self._store.put(self._key(self._name), str(self._count).encode())
        self._thread.start()

    def watch(self, names: Sequence[str], survey_key: str) -> None:
        """Watch the neighbours of this member in the list, and look for a survey under this key."""
        index = names.index(self._name)
        near = {names[index - 1], names[(index + 1) % len(names)]} - {self._name}
        self._names = names
        self._watched = {name: self._watched.get(name) or _Watched() for name in near}
        self._survey_key = survey_key

    def announce_survey(self, key: str) -> None:
        """Announce a survey and the lost members, and watch all others until it is over."""
        self._survey_key = None
        self._watched = {name: self._watched.get(name) or _Watched() for name in self._names if name != self._name}
        self._store.put(key, ",".join(sorted(self.lost)).encode())

    def close(self, *, is_clean: bool = False) -> None:
        """End the heartbeats of this member. After a clean end, the last one is deleted, so that nobody misses it."""
        self._ended.set()
        self._thread.join()
        if is_clean:
            with suppress(StoreError):
                self._store.delete([self._key(self._name)])

    def _run(self) -> None:
        next_beat_s = next_look_s = 0.0
        while not self._ended.is_set():
            now_s = time.monotonic()
            try:
                if now_s >= next_beat_s:
                    self._count += 1
                    self._store.put(self._key(self._name), str(self._count).encode())
                    next_beat_s = now_s + HEARTBEAT_S
                if now_s >= next_look_s:
                    self._look()
                    next_look_s = now_s + LOOK_S
                self._look_for_survey()
            except StoreError as error:  # while the store fails, silence is nobody's fault
                logger.debug("no heartbeats can be read: %s", error)
                for watched in self._watched.values():
                    watched.excuse()
            self._ended.wait(CALL_S)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _look(self) -> None:
        for name, watched in list(self._watched.items()):
            try:
                watched.note(bytes(self._store.get(self._key(name))))
            except ObjectNotFound:
                continue  # that member has not begun
            if watched.is_lost and name not in self.lost:
                logger.warning("member %s has been silent for %.1f s", name, watched.silent_s)
                self.lost.add(name)
                self._on_lost()

    def _look_for_survey(self) -> None:
        key = self._survey_key
        if key is None:
            return
        try:
            named = bytes(self._store.get(key))[:_MAX_ANNOUNCEMENT_BYTES].decode(errors="replace")
        except ObjectNotFound:
            return
        self._survey_key = None
        self.lost |= set(named.split(",")) & set(self._names)
        self._on_lost()


class _Watched:
    """The heartbeats of one member, as another member has read them."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._changed_s = time.monotonic()
        self._looked_s = self._changed_s
        self._max_delay_s = 0.0
        """Longest delay of a heartbeat so far, in seconds after it was due."""

    def note(self, counter: bytes) -> None:
        now_s = time.monotonic()
        if counter != self._last:
            if self._last is not None:
                self._max_delay_s = max(self._max_delay_s, now_s - self._changed_s - HEARTBEAT_S - LOOK_S)
            self._last = counter
            self._changed_s = now_s
        else:  # while the watcher itself was delayed, it could not look
            self._changed_s += max(0.0, now_s - self._looked_s - 2 * LOOK_S)
        self._looked_s = now_s

    def excuse(self) -> None:
        """Do not count the time since the last look as silence."""
        now_s = time.monotonic()
        self._changed_s += now_s - self._looked_s
        self._looked_s = now_s

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._changed_s

    @property
    def is_lost(self) -> bool:
        limit_s = min(SILENCE_S + _DELAY_FACTOR * self._max_delay_s, _MAX_SILENCE_S)
        return self._last is not None and self.silent_s > limit_s
