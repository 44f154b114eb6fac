"""Members that a killed coordinator has left behind, found by their handles from any machine, and ended."""

import logging

from zooid.coordinator.runs.platform_choice import any_platform
from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.ticket import title_of
from zooid.store import ObjectStore
from zooid.store.member_starts import cancel_start
from zooid.store.stored_records import read_record

logger = logging.getLogger(__name__)


def end_left_members(store: ObjectStore) -> None:
    """End all members that have handles, and return when they are gone.

    One that has not started yet never will. Members that cannot be reached from here end when they see a newer claim.
    """
    titles: dict[str, set[str]] = {}
    platform = any_platform(forks=False)
    try:
        for key in store.list(keys.HANDLES):
            roster = keys.roster_in(key.split("/")[1])
            if roster is None:
                continue
            try:
                handle = read_record(store, key, MemberHandle)
            except (ObjectNotFound, RecordError) as error:
                logger.warning("a member is left alone, because its handle cannot be read: %s", error)
                continue
            cancel_start(store, handle.member, roster[0])
            if platform.watch(handle, title_of(handle.member, roster[0])):
                titles.setdefault(handle.run, set()).add(title_of(handle.member, roster[0]))
        for run, known in titles.items():
            platform.delete(run, known)
    finally:
        platform.release()
