"""A barrier through a c10d store, which names the missing ranks and does no harm to the group."""

import datetime
from typing import Any

from zooid.core.errors import CommTimeout
from zooid.store.barrier import RanksMissing, pass_barrier


class _StoreBoard:
    """Any c10d store as the board of a barrier."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, key: str, words: bytes) -> None:
        self._store.set(key, words)

    def read(self, key: str, timeout_s: float) -> bytes:
        try:
            self._store.wait([key], datetime.timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise CommTimeout(f"no rank set the key {key!r} within {timeout_s:g} s") from error
        return bytes(self._store.get(key))


def monitored_barrier(store: Any, folder: str, rank: int, size: int, *, limit_s: float, wait_all_ranks: bool) -> None:
    """Let rank 0 wait for every rank, and then let all go on."""
    if rank == 0 and limit_s <= 0:
        raise CommTimeout("Rank 0 timed out in monitoredBarrier after 0 s, before it could hear any rank")
    try:
        pass_barrier(_StoreBoard(store), folder, rank, size, timeout_s=limit_s, names_all=wait_all_ranks)
    except RanksMissing as error:
        if rank != 0:
            raise CommTimeout(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0, which did not let it go within {limit_s:g} s; rank 0 knows which ranks are missing"
            ) from error
        ranks = f"Rank{'s' if len(error.ranks) > 1 else ''} {', '.join(map(str, error.ranks))}"
        raise CommTimeout(f"{ranks} failed to pass monitoredBarrier in {limit_s:g} s") from error
