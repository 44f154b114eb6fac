"""A barrier through the meeting store, which says who did not come and leaves the group as it was."""

import datetime
import time
from typing import Any

from zooid.core.errors import CommTimeout


def monitored_barrier(store: Any, folder: str, rank: int, size: int, *, limit_s: float, wait_all_ranks: bool) -> None:
    """Rank 0 hears every rank and then lets all go on."""
    deadline_s = time.monotonic() + limit_s
    if rank != 0:
        store.set(f"{folder}/{rank}", "here")
        if not _is_set(store, f"{folder}/go", deadline_s):
            raise CommTimeout(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0, which did not let it go within {limit_s:g} s; rank 0 knows who is missing"
            )
        return
    if limit_s <= 0:
        raise CommTimeout("Rank 0 timed out in monitoredBarrier after 0 s, before it could hear anybody")
    missing = []
    for other in range(1, size):
        if not _is_set(store, f"{folder}/{other}", deadline_s):
            missing.append(other)
            if not wait_all_ranks:
                break
    if missing:
        ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise CommTimeout(f"{ranks} failed to pass monitoredBarrier in {limit_s:g} s")
    store.set(f"{folder}/go", "go")


def _is_set(store: Any, key: str, deadline_s: float) -> bool:
    """Wait for a key; whether it came in time."""
    left_s = max(0.001, deadline_s - time.monotonic())
    try:
        store.wait([key], datetime.timedelta(seconds=left_s))
    except RuntimeError:
        return False
    return True
