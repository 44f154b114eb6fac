"""Members that a coordinator has left behind, found by their handles from any machine, and ended."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from zooid.coordinator.measurements.scratch_folder import is_scratch
from zooid.coordinator.plans.known_places import in_words, is_known, place_in
from zooid.coordinator.plans.own_offers import named_places
from zooid.coordinator.runs.left_handles import is_left, keep_handle
from zooid.coordinator.runs.platform_choice import any_platform
from zooid.core.environment import machines_file
from zooid.core.errors import InputError, ObjectNotFound, RecordError
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.ticket import title_of
from zooid.store import ObjectStore, open_store
from zooid.store.member_starts import cancel_start
from zooid.store.stored_records import find_end, read_record

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftMember:
    """A member that may still run, although its coordinator has ended."""

    store: ObjectStore
    """The folder of its run, or of the measurement for which it was started."""
    key: str
    """Key of its handle in that folder."""
    roster: int
    handle: MemberHandle

    @property
    def title(self) -> str:
        return title_of(self.handle.member, self.roster)

    @property
    def may_run(self) -> bool:
        """Whether its end is not recorded."""
        with suppress(RecordError):
            return find_end(self.store, self.handle.member, self.roster) is None
        return True


def measurement_folders(store: ObjectStore) -> list[str]:
    """List the folders in which members measure, or did when their coordinator was killed."""
    return [name for name in store.list_folders("") if is_scratch(name)]


def find_left_members(store: ObjectStore, measurements: Iterable[str], *, with_handles: bool) -> list[LeftMember]:
    """Find members that were left in the folder of a run and in these folders of measurements.

    Without `with_handles`, members of the run itself count only if they could not be ended before.
    """
    listed = [*store.list(keys.LEFT), *(store.list(keys.HANDLES) if with_handles else ())]
    listed += [key for folder in measurements for key in store.list(folder)]
    found = [member for key in listed if (member := _left_member(store, key)) is not None]
    return [member for member in found if member.may_run]


def _left_member(store: ObjectStore, key: str) -> LeftMember | None:
    """Read the handle with this key; None if the key is not one of a handle, or if the handle cannot be read."""
    if key.count("/") < 2:
        return None
    *above, kind, label, name = key.split("/")
    if kind not in (keys.HANDLES, keys.LEFT) or (roster := keys.roster_in(label)) is None:
        return None
    folder = open_store("/".join([store.url, *above])) if above else store
    try:
        handle = read_record(folder, f"{kind}/{label}/{name}", MemberHandle)
    except (ObjectNotFound, RecordError) as error:
        logger.warning("a member is left alone, because its handle cannot be read: %s", error)
        return None
    return LeftMember(folder, f"{kind}/{label}/{name}", roster[0], handle)


def reject_unnamed_places(members: Sequence[LeftMember], url: str) -> None:
    """Reject members at places that this user has not named, to which a handle may lead whoever follows it."""
    named = named_places() if members else set()
    unnamed = [
        member.handle
        for member in members
        if (place := place_in(member.handle)) is not None and not is_known(place, named)
    ]
    if unnamed:
        raise InputError(
            f"members that were left in {url} may run at places that {machines_file()} does not name: "
            f"{'; '.join(map(in_words, unnamed))}; nothing was removed: name these machines there, or, if nobody else "
            "may write to the folder, give --trust-handles (in Python, trust_handles=True)"
        )


def end_left_members(members: Sequence[LeftMember], *, trusts_handles: bool = False) -> None:
    """End members, and return when they are gone. One that has not started yet never will.

    Those that cannot be reached from here end when they see a newer claim.
    """
    titles: dict[str, set[str]] = {}
    platform = any_platform(forks=False, trusts_handles=trusts_handles)
    try:
        for member in members:
            cancel_start(member.store, member.handle.member, member.roster)
            if platform.watch(member.handle, member.title):
                titles.setdefault(member.handle.run, set()).add(member.title)
        unended = {(run, title) for run, known in titles.items() for title in platform.delete(run, known)}
    finally:
        platform.release()
    for member in members:
        if (member.handle.run, member.title) in unended:
            keep_handle(member.store, member.handle.member, member.roster)
        elif is_left(member.key):
            member.store.delete([member.key])


def forget_ended(members: Iterable[LeftMember]) -> list[LeftMember]:
    """Remove the handles of members that have ended since they were kept, and return the other members."""
    kept = []
    for member in members:
        key = keys.left(member.handle.member, member.roster)
        if key not in member.store.list(keys.LEFT):
            continue
        if member.may_run:
            kept.append(member)
        else:
            member.store.delete([key, keys.end(member.handle.member, member.roster)])
    return kept
