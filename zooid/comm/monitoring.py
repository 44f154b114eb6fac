"""What a user can ask a group of this backend beyond torch.distributed's own calls."""

import datetime
from typing import Any

from torch import distributed as dist

from zooid.comm.process_group import ProcessGroup
from zooid.comm.traffic_counter import Statistics
from zooid.core.errors import InputError


def statistics(group: Any = None) -> Statistics:
    """What this rank has sent, received, asked of the store and waited for in a group (None: the default group)."""
    return _own(group).counter.read()


def monitored_barrier(
    group: Any = None, timeout: datetime.timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that says who did not come, without harm to the group.

    Rank 0 hears every rank and then lets all go on. On time-out it names the first rank that is missing, or all of
    them with `wait_all_ranks`; the others only know that rank 0 did not let them go. The time-out is a timedelta, or
    seconds.
    """
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    _own(group).monitored_barrier(timeout, wait_all_ranks)


def _own(group: Any) -> ProcessGroup:
    own = dist.group.WORLD if group is None else group
    if not isinstance(own, ProcessGroup):
        raise InputError(f"this group is a {type(own).__name__}; only groups of the backend zooid know this")
    return own
