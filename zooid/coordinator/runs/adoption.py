"""Adoption of members whose coordinator has died: finding those that still train, and supervising them.

Members on this machine are watched as processes. Others are judged by what they write to the store.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zooid.coordinator.runs.lease import SILENCE_S
from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import MemberHandle
from zooid.platforms import Exit, Launch, Platform
from zooid.store import EventReader, Fence, ObjectStore, clear
from zooid.store.checkpoint_index import complete_steps
from zooid.store.event_log import last_told
from zooid.store.planned_changes import find_newest_change
from zooid.store.rosters import last_number, last_roster, read_roster
from zooid.store.stored_records import read_record

logger = logging.getLogger(__name__)

_POLL_S = 0.2


@dataclass(frozen=True)
class Orphan:
    """A member without a coordinator, or one that joins such members."""

    name: str
    started_at_s: float
    handle: Any
    """The platform's handle; None if the member runs on another machine."""
    is_own: bool = False
    """Whether the coordinator that has adopted the others has started it."""


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
        """Whether all of them run on this machine, so that this process can end them."""
        return all(member.handle is not None for member in self.members)


def find_orphans(store: ObjectStore, platform: Platform[Any], plan: Plan, told: Mapping[str, int]) -> Orphans | None:
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
    if any(orphan.handle is None for orphan in alive) and not _are_heard(store, roster, told):
        return None
    step = last_told(store, roster.members[0].name, roster.number, roster.change)[0] + 1
    return Orphans(roster, tuple(alive), told, step or roster.first_computed)


def find_orphan(store: ObjectStore, platform: Platform[Any], member: str, number: int) -> Orphan | None:
    """Find one member of a claim; None if it was never recorded or is known to have ended."""
    try:
        record = read_record(store, keys.handle(member, number), MemberHandle)
    except ObjectNotFound:
        return None
    except RecordError as error:
        logger.warning("a member counts as lost: %s", error)
        return None
    handle = platform.find(record.place)
    if handle is not None and platform.poll(handle) is not None:
        return None
    return Orphan(member, record.started_at_s, handle)


def end_waiting(store: ObjectStore, platform: Platform[Any], number: int) -> None:
    """End processes that a dead coordinator has started on this machine, and that wait for seats that nobody plans.

    Elsewhere, they end when they see that nobody waits for them any more.
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
        if orphan is not None and orphan.handle is not None:
            platform.terminate(orphan.handle)


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


@dataclass
class AdoptedMembers:
    """A platform of members that another process has started, so that only the store tells how they ended.

    Those that join them are started on the platform itself.
    """

    platform: Platform[Any]
    last_heard_s: Callable[[str], float]
    """Returns when a member was last heard in the store, on the clock of `time.monotonic`."""
    has_trained: Callable[[str], bool]
    """Returns whether a member has reported that it has done all its steps."""
    timeout_s: float
    """Time of silence after which a member counts as lost whose process cannot be seen."""
    _exits: dict[str, Exit] = field(default_factory=dict)

    def poll(self, handle: Orphan) -> Exit | None:
        if handle.name not in self._exits and (found := self._find_exit(handle)) is not None:
            self._exits[handle.name] = found
        return self._exits.get(handle.name)

    def _find_exit(self, handle: Orphan) -> Exit | None:
        if handle.is_own:
            return self.platform.poll(handle.handle)
        if handle.handle is not None:
            process_exit = self.platform.poll(handle.handle)
            if process_exit is None or process_exit.status is not None:
                return process_exit
        if self.has_trained(handle.name):
            return Exit(0)
        is_silent = time.monotonic() - self.last_heard_s(handle.name) >= self.timeout_s
        return Exit(None) if handle.handle is not None or is_silent else None

    def logs(self, handle: Orphan) -> str:
        return "" if handle.handle is None else self.platform.logs(handle.handle)

    def leave(self, handle: Orphan) -> None:
        """Leave a member alone. This process holds no resources of one that another process has started."""
        if handle.is_own:
            self.platform.leave(handle.handle)

    def terminate(self, handle: Orphan) -> None:
        """End a member on this machine. Others end when they see a claim that is not an adoption."""
        if handle.handle is not None:
            self.platform.terminate(handle.handle)

    def launch(self, launch: Launch) -> Orphan:
        return Orphan(launch.member, time.time(), self.platform.launch(launch), is_own=True)

    def has_room(self, num_members: int, offer: str) -> bool:
        return self.platform.has_room(num_members, offer)

    def locate(self, handle: Orphan) -> dict[str, str]:
        assert handle.is_own, f"{handle.name} was located by whoever started it"
        return self.platform.locate(handle.handle)

    def find(self, place: Mapping[str, str]) -> Orphan | None:
        raise AssertionError(f"{place} was looked at before it was adopted")
