"""The barrier of ranks that share nothing but a store: the first hears all of them, and then lets them go on."""

import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, RecordError
from zooid.core.records import decode_json
from zooid.store.awaited_objects import wait_for
from zooid.store.store_protocol import ObjectStore

_GO = "go"


class Board(Protocol):
    """Where ranks leave words for one another; each key is written once, by one rank."""

    def post(self, key: str, words: bytes) -> None:
        """Leave words under a key."""

    def read(self, key: str, timeout_s: float) -> bytes:
        """The words under a key, as soon as they are there; CommTimeout where they do not come."""


class ObjectBoard:
    """A folder of an object store as a board.

    Plain puts are enough, since no two ranks write the same key: a store that ignores create-only puts serves, too.
    """

    def __init__(self, store: ObjectStore, abort: Abort) -> None:
        self._store = store
        self._abort = abort

    def post(self, key: str, words: bytes) -> None:
        self._store.put(key, words)

    def read(self, key: str, timeout_s: float) -> bytes:
        return bytes(wait_for(self._store, key, timeout_s=timeout_s, abort=self._abort))


class RanksMissing(CommTimeout):
    """Ranks did not come to a barrier in time. The others only know that the first did not let them go."""

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        super().__init__(f"ranks {', '.join(map(str, ranks))} did not come within {timeout_s:g} s")
        self.ranks = tuple(ranks)


def pass_barrier(
    board: Board,
    folder: str,
    rank: int,
    size: int,
    words: bytes = b"",
    *,
    timeout_s: float,
    names_all: bool = False,
) -> list[bytes]:
    """Wait until all ranks are here; the words of each of them. The folder must be new.

    RanksMissing names the first rank that is missing, or all of them with `names_all`.
    """
    deadline_s = time.monotonic() + timeout_s
    if rank != 0:
        board.post(f"{folder}/{rank:06d}", words)
        return _words_of_all(_hear(board, f"{folder}/{_GO}", 0, deadline_s, timeout_s), f"{folder}/{_GO}", size)
    heard, missing = [words], []
    for other in range(1, size):
        try:
            heard.append(_hear(board, f"{folder}/{other:06d}", other, deadline_s, timeout_s))
        except RanksMissing:
            missing.append(other)
            if not names_all:
                break
    if missing:
        raise RanksMissing(missing, timeout_s)
    board.post(f"{folder}/{_GO}", msgspec.json.encode(heard))
    return heard


def _words_of_all(data: bytes, key: str, size: int) -> list[bytes]:
    heard: list[bytes] = decode_json(data, list[bytes], key, "what all ranks say")
    if len(heard) != size:
        raise RecordError(f"{key} is of {len(heard)} ranks, but {size} meet")
    return heard


def _hear(board: Board, key: str, rank: int, deadline_s: float, timeout_s: float) -> bytes:
    try:
        return board.read(key, max(0.001, deadline_s - time.monotonic()))
    except CommTimeout as error:
        raise RanksMissing([rank], timeout_s) from error
