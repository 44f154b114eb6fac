"""Adoption of members whose coordinator has died: finding those that still train.

Members that the platform lists are watched there. Others are judged by what they write to the store.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from zooid.coordinator.runs.lease import SILENCE_S
from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.roster import Roster
from zooid.core.runs.ticket import title_of
from zooid.platforms import Platform
from zooid.store import EventReader, Fence, ObjectStore, clear
from zooid.store.checkpoint_index import complete_steps
from zooid.store.event_log import last_told
from zooid.store.planned_changes import find_newest_change
from zooid.store.rosters import last_number, last_roster, read_roster
from zooid.store.stored_records import find_end, read_record

logger = logging.getLogger(__name__)

_POLL_S = 0.2


@dataclass(frozen=True)
class Orphan:
    """A member without a coordinator."""

    name: str
    handle: MemberHandle
    is_seen: bool
    """Whether the platform lists it from here; otherwise it runs on another machine, and only the store tells of it."""


@dataclass(frozen=True)
class Orphans:
    """The live members of a roster whose coordinator is dead; there are enough of them to continue."""

    roster: Roster
    members: tuple[Orphan, ...]
    told: Mapping[str, int]
    """Progress of the dead coordinator in relaying their events; see `Relay.told`."""
    step: int
    """The next step that they will report."""

    @property
    def are_seen(self) -> bool:
        """Whether the platform can list all of them from here, so that this process can end them."""
        return all(member.is_seen for member in self.members)


def find_orphans(store: ObjectStore, platform: Platform, plan: Plan, told: Mapping[str, int]) -> Orphans | None:
    """Find the members that still train; None if they are too few, were told to end, or have no weights yet.

    A plan that survives lost members needs as many as it has stages; they agree on a roster themselves. Any other plan
    needs all of its members.
    """
    roster = last_roster(store, last_number(store))
    if roster is None or not complete_steps(store) or Fence(store, roster.number).is_superseded():
        return None
    orphans = [find_orphan(store, platform, seat.name, roster.number) for seat in roster.seats]
    alive = [orphan for orphan in orphans if orphan is not None]
    num_needed = roster.num_stages if plan.survives_losses else len(roster.seats)
    if len(alive) < num_needed:
        return None
    if not all(orphan.is_seen for orphan in alive) and not _are_heard(store, roster, told):
        return None
    step = last_told(store, roster.members[0].name, roster.number, roster.change)[0] + 1
    return Orphans(roster, tuple(alive), told, step or roster.first_computed)


def find_orphan(store: ObjectStore, platform: Platform, member: str, number: int) -> Orphan | None:
    """Find one member of a claim; None if it was never launched or is known to have ended."""
    try:
        handle = read_record(store, keys.handle(member, number), MemberHandle)
    except ObjectNotFound:
        return None
    except RecordError as error:
        logger.warning("a member counts as lost: %s", error)
        return None
    is_seen = platform.watch(handle, title_of(member, number))
    if is_seen:
        listed = platform.members(handle.run)
        title = title_of(member, number)
        has_ended = title not in listed or listed[title] is not None
    else:
        has_ended = find_end(store, member, number) is not None
    return None if has_ended else Orphan(member, handle, is_seen)


def end_waiting(store: ObjectStore, platform: Platform, number: int) -> None:
    """End members that a dead coordinator has started, and that wait for seats that nobody plans.

    Those that the platform cannot list from here end when they see that nobody waits for them any more.
    """
    clear(store, keys.joining_under(number))
    roster = last_roster(store, number)
    assert roster is not None, "members that are adopted have a roster"
    newest = find_newest_change(store, roster)
    planned = () if newest is None else tuple(seat.name for seat in newest.seats)
    first = read_roster(store, number)
    known = {*roster.stages, *roster.former, *planned, *first.stages}
    for key in store.list(keys.specs_under(number)):
        name = key.rpartition("/")[2].removesuffix(".json")
        orphan = None if name in known else find_orphan(store, platform, name, number)
        if orphan is not None and orphan.is_seen:
            platform.delete(orphan.handle.run, [title_of(name, number)])


def _are_heard(store: ObjectStore, roster: Roster, told: Mapping[str, int]) -> bool:
    """Whether members write an event within the timeout of a lease."""
    reader = EventReader(store, roster.number, roster.change, told)
    reader.read_new()
    deadline_s = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        if reader.read_new():
            return True
    return False
