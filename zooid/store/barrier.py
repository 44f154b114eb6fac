"""A barrier for ranks that have only a store in common: the first rank waits for all, and then releases them."""

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
    """A message board for ranks; each key is written once, by one rank."""

    def post(self, key: str, words: bytes) -> None:
        """Write a message under a key."""

    def read(self, key: str, timeout_s: float) -> bytes:
        """The message under a key, as soon as it exists; CommTimeout if it does not come."""


class ObjectBoard:
    """A board in a folder of an object store.

    Plain puts are enough, since no two ranks write the same key.
    """

    def __init__(self, store: ObjectStore, abort: Abort) -> None:
        self._store = store
        self._abort = abort

    def post(self, key: str, words: bytes) -> None:
        self._store.put(key, words)

    def read(self, key: str, timeout_s: float) -> bytes:
        return bytes(wait_for(self._store, key, timeout_s=timeout_s, abort=self._abort))


class RanksMissing(CommTimeout):
    """Ranks did not reach a barrier in time; only the first rank knows which."""

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        super().__init__(f"ranks {', '.join(map(str, ranks))} did not arrive within {timeout_s:g} s")
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
    """Wait until all ranks have arrived, and return their messages; the folder must be new.

    RanksMissing names the first missing rank, or all missing ranks with `names_all`.
    """
    deadline_s = time.monotonic() + timeout_s
    if rank != 0:
        board.post(f"{folder}/{rank:06d}", words)
        return _all_messages(_hear(board, f"{folder}/{_GO}", 0, deadline_s, timeout_s), f"{folder}/{_GO}", size)
    messages, missing = [words], []
    for other in range(1, size):
        try:
            messages.append(_hear(board, f"{folder}/{other:06d}", other, deadline_s, timeout_s))
        except RanksMissing:
            missing.append(other)
            if not names_all:
                break
    if missing:
        raise RanksMissing(missing, timeout_s)
    board.post(f"{folder}/{_GO}", msgspec.json.encode(messages))
    return messages


def _all_messages(data: bytes, key: str, size: int) -> list[bytes]:
    messages: list[bytes] = decode_json(data, list[bytes], key, "the messages of all ranks")
    if len(messages) != size:
        raise RecordError(f"{key} has messages of {len(messages)} ranks, but the barrier has {size}")
    return messages


def _hear(board: Board, key: str, rank: int, deadline_s: float, timeout_s: float) -> bytes:
    try:
        return board.read(key, max(0.001, deadline_s - time.monotonic()))
    except CommTimeout as error:
        raise RanksMissing([rank], timeout_s) from error
