"""Questions that a user can ask a group of this backend, beyond torch.distributed's own calls."""

import datetime
from typing import Any

from torch import distributed as dist

from zooid.comm.process_group import ProcessGroup
from zooid.comm.traffic_counter import Statistics
from zooid.core.errors import InputError


def statistics(group: Any = None) -> Statistics:
    """Return this rank's counts of messages, bytes, store requests and waiting in a group (None: the default group)."""
    return _zooid_group(group).counter.read()


def monitored_barrier(
    group: Any = None, timeout: datetime.timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Pass a barrier that names missing ranks and does no harm to the group.

    Rank 0 waits for every rank and then lets all go on. On a timeout it names the first missing rank, or all of them
    with `wait_all_ranks`; the others only know that rank 0 did not let them go. `timeout` is a timedelta, or seconds.
    """
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    _zooid_group(group).monitored_barrier(timeout, wait_all_ranks)


def _zooid_group(group: Any) -> ProcessGroup:
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, ProcessGroup):
        raise InputError(f"this group is a {type(chosen).__name__}; this call needs a group of the backend zooid")
    return chosen
