"""The rendezvous of ranks that share nothing but a folder of an object store.

Rank 0 calls with a new session name; the others answer; when all have answered, rank 0 says go. An answer to a new call
cannot come from an earlier run, so objects that an earlier run left there do no harm. No rank hosts anything.
"""

import functools
import json
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from zooid.core.abort import Abort
from zooid.core.errors import CommError, CommTimeout, ObjectExists, ObjectNotFound, RecordError, StoreError
from zooid.core.records import decode_json, require
from zooid.core.runs import keys
from zooid.core.text import quoted
from zooid.store import ObjectStore, RetryingStore, clear

logger = logging.getLogger(__name__)

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.002, 0.3
_PAUSE_FRACTION = 0.2
"""The lobby is read again after this fraction of the time waited so far."""
_LEAVE_TIMEOUT_S = 30.0
"""The longest that a leaving rank waits for a failing store."""


class _Call(msgspec.Struct):
    """Rank 0's first message, which says only that it is there."""


class _Here(msgspec.Struct):
    """Another rank's answer."""

    size: int


class _Go(msgspec.Struct):
    """Rank 0's message when all ranks have answered."""

    latency_s: float

    def __post_init__(self) -> None:
        require(self.latency_s >= 0, f"`latency_s` is {self.latency_s}; it must be at least 0")


class _Refused(msgspec.Struct):
    """Rank 0's message when ranks expect different world sizes."""

    why: str


_LobbyMessage = TypeVar("_LobbyMessage", _Call, _Here, _Go, _Refused)


@dataclass(frozen=True)
class Session:
    """The outcome of a rendezvous, the same on every rank."""

    prefix: str
    """Prefix of all keys of this session."""
    lobby: str
    """Prefix of the keys of the rendezvous itself."""
    latency_s: float
    """Latency of a small request, as rank 0 measured it."""


def meet(objects: ObjectStore, rank: int, size: int, *, timeout_s: float, abort: Abort) -> Session:
    """Wait until all ranks are here; CommTimeout names the missing ranks."""
    store = RetryingStore(objects, abort, give_up_s=timeout_s)
    lobby = _Lobby(store, size, timeout_s, abort)
    return lobby.call() if rank == 0 else lobby.answer(rank)


def leave(objects: ObjectStore, prefixes: Sequence[str], rank: int, size: int, *, timeout_s: float) -> None:
    """Declare that this rank needs no object under these prefixes any more; the last of `size` ranks deletes them all.

    A failing store is retried for at most `timeout_s` and half a minute, since leftover objects do no harm.
    """
    store = RetryingStore(objects, Abort(), give_up_s=min(timeout_s, _LEAVE_TIMEOUT_S))
    try:
        store.put(f"{prefixes[0]}/left/{rank:06d}", b"left")
        if len(store.list(f"{prefixes[0]}/left")) == size:
            for prefix in prefixes:
                clear(store, prefix)
    except StoreError as error:  # `zooid clean` deletes them
        logger.warning("the messages of the group could not be deleted from %s: %s", objects.url, error)


class _Lobby:
    """One rank's part in a rendezvous."""

    def __init__(self, store: ObjectStore, size: int, timeout_s: float, abort: Abort) -> None:
        self._store = store
        self._size = size
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._abort = abort
        self._waited_s = 0.0

    def call(self) -> Session:
        """Open a session as rank 0, and wait for the answers of all other ranks."""
        session = secrets.token_hex(8)
        began_s = time.monotonic()
        self._store.put(keys.lobby(session, "call"), b"{}")
        latency_s = time.monotonic() - began_s
        while True:
            began_s = time.monotonic()
            present = {key.rpartition("/")[2] for key in self._store.list(keys.lobby(session))}
            latency_s = min(latency_s, time.monotonic() - began_s)
            self._check_sizes(session, present)
            missing = [rank for rank in range(1, self._size) if f"here-{rank}" not in present]
            if not missing:
                break
            self._pause(f"ranks {', '.join(map(str, missing))} did not come to {self._store.url}")
        self._store.put(keys.lobby(session, "go"), json.dumps({"latency_s": latency_s}).encode())
        return Session(keys.session(session), keys.lobby(session), latency_s)

    def answer(self, rank: int) -> Session:
        """Answer every new call of a rank 0, and return the first session that it begins."""
        nonce = secrets.token_hex(16)
        answered: set[str] = set()
        seen: set[str] = set()
        while True:
            objects = [key.split("/")[-2:] for key in self._store.list(keys.LOBBY)]
            for session, name in objects:  # first, so that no call is answered that is for this rank's next rendezvous
                if name == "go" and session in answered and (go := self._read(session, name, _Go)) is not None:
                    return Session(keys.session(session), keys.lobby(session), go.latency_s)
                if name == "refused" and session in answered and (refusal := self._read(session, name, _Refused)):
                    raise CommError(quoted(refusal.why))
            for session, name in objects:
                if name == "call" and session not in seen and self._read(session, name, _Call) is not None:
                    seen.add(session)
                    if self._answer_call(session, rank, nonce):
                        answered.add(session)
            self._pause(f"rank 0 did not come to {self._store.url}, or did not hear all other ranks,")

    def _read(self, session: str, what: str, kind: type[_LobbyMessage]) -> _LobbyMessage | None:
        """Return a message in the lobby; None where it is listed but not yet readable, or is no such message."""
        key = keys.lobby(session, what)
        try:
            return decode_json(self._store.get(key), kind, f"{self._store.url}/{key}", "a rendezvous message")
        except ObjectNotFound:
            return None
        except RecordError as error:
            _log_stray(str(error))
            return None

    def _check_sizes(self, session: str, present: set[str]) -> None:
        """Reject ranks that expect another world size, and tell them why."""
        for name in present:
            if name.startswith("here-") and (answer := self._read(session, name, _Here)) and answer.size != self._size:
                why = (
                    f"rank 0 came to {self._store.url} with world_size={self._size}, but rank {name[5:]} with "
                    f"world_size={answer.size}: give every rank the same"
                )
                self._store.put(keys.lobby(session, "refused"), json.dumps({"why": why}).encode())
                raise CommError(why)

    def _answer_call(self, session: str, rank: int, nonce: str) -> bool:
        """Answer a call; return False where an earlier run has answered it in this rank's name."""
        present = self._store.list(keys.lobby(session))
        if keys.lobby(session, f"here-{rank}") in present or keys.lobby(session, "go") in present:
            return False
        answer = json.dumps({"size": self._size, "nonce": nonce}).encode()
        try:
            self._store.create(keys.lobby(session, f"here-{rank}"), answer)
        except ObjectExists:
            return False
        return True

    def _pause(self, what: str) -> None:
        if time.monotonic() > self._deadline_s:
            raise CommTimeout(f"{what} within {self._timeout_s:g} s")
        pause_s = min(max(_MIN_PAUSE_S, self._waited_s * _PAUSE_FRACTION), _MAX_PAUSE_S)
        self._waited_s += pause_s
        self._abort.sleep(pause_s)


@functools.lru_cache(maxsize=256)
def _log_stray(message: str) -> None:
    logger.warning("an object in the lobby is ignored: %s", message)
