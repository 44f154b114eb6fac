"""Members that a dead coordinator has left behind: whether they are at work, and how another one watches them.

Members of this machine are looked at as processes. Others are judged by what they write to the store.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zooid.coordinator.runs.lease import SILENCE_S
from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import MemberHandle
from zooid.platforms import Exit, Launch, Platform
from zooid.store import EventReader, Fence, ObjectStore
from zooid.store.checkpoint_index import complete_steps
from zooid.store.event_log import last_told
from zooid.store.rosters import last_number, last_roster

logger = logging.getLogger(__name__)

_LOOK_S = 0.2


@dataclass(frozen=True)
class Orphan:
    """A member without a coordinator."""

    name: str
    started_at_s: float
    handle: Any
    """The platform's own; None where the member runs on another machine."""


@dataclass(frozen=True)
class Orphans:
    """The members of a roster whose coordinator is dead, with enough of them at work to go on."""

    roster: Roster
    members: tuple[Orphan, ...]
    told: Mapping[str, int]
    """How far the dead coordinator had passed their events on."""
    step: int
    """The next step that they will tell of."""

    @property
    def are_seen(self) -> bool:
        """True if all of them can be ended from here."""
        return all(member.handle is not None for member in self.members)


def find_orphans(store: ObjectStore, platform: Platform[Any], plan: Plan, told: Mapping[str, int]) -> Orphans | None:
    """The members that train at present; None if they are too few, have been told to end, or have no weights yet.

    A plan that survives losses needs as many members as it has stages: they settle by themselves who goes on. Every
    other plan needs all of its members.
    """
    roster = last_roster(store, last_number(store))
    if roster is None or not complete_steps(store) or Fence(store, roster.number).is_superseded():
        return None
    found = [_orphan(store, platform, member.name, roster.number) for member in roster.seats]
    living = [member for member in found if member is not None]
    num_needed = roster.num_stages if plan.survives_losses else len(roster.seats)
    if len(living) < num_needed:
        return None
    if any(member.handle is None for member in living) and not _are_heard(store, roster, told):
        return None
    step = last_told(store, roster.members[0].name, roster.number, roster.change)[0] + 1
    return Orphans(roster, tuple(living), told, step or roster.first_computed)


def _orphan(store: ObjectStore, platform: Platform[Any], member: str, number: int) -> Orphan | None:
    """The member, unless it was never recorded or is known to have ended."""
    key = keys.handle(member, number)
    try:
        known = decode_record(bytes(store.get(key)), MemberHandle, f"{store.url}/{key}")
    except ObjectNotFound:
        return None
    except RecordError as error:
        logger.warning("a member is taken for lost: %s", error)
        return None
    handle = platform.find(known.place)
    if handle is not None and platform.poll(handle) is not None:
        return None
    return Orphan(member, known.started_at_s, handle)


def _are_heard(store: ObjectStore, roster: Roster, told: Mapping[str, int]) -> bool:
    """Whether members tell anything within the time after which a coordinator would be taken for dead."""
    reader = EventReader(store, roster.number, roster.change, told)
    reader.read_new()
    deadline_s = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        if reader.read_new():
            return True
    return False


@dataclass
class AdoptedMembers:
    """A platform for members that others have started. How such a member ended, only the store can tell."""

    platform: Platform[Any]
    last_sign_of_life_s: Callable[[str], float]
    """When a member was last heard of in the store, by the clock of `time.monotonic`."""
    has_trained: Callable[[str], bool]
    """Whether a member has told that it has done all its steps."""
    timeout_s: float
    """A member that cannot be seen, and is not heard of for this long, is taken for lost."""
    _ends: dict[str, Exit] = field(default_factory=dict)

    def poll(self, handle: Orphan) -> Exit | None:
        if handle.name not in self._ends and (end := self._look(handle)) is not None:
            self._ends[handle.name] = end
        return self._ends.get(handle.name)

    def _look(self, handle: Orphan) -> Exit | None:
        if handle.handle is not None:
            end = self.platform.poll(handle.handle)
            if end is None or end.status is not None:
                return end
        if self.has_trained(handle.name):
            return Exit(0)
        is_silent = time.monotonic() - self.last_sign_of_life_s(handle.name) >= self.timeout_s
        return Exit(None) if handle.handle is not None or is_silent else None

    def logs(self, handle: Orphan) -> str:
        return "" if handle.handle is None else self.platform.logs(handle.handle)

    def leave(self, handle: Orphan) -> None:
        """Nothing here holds a member that another process has started."""

    def terminate(self, handle: Orphan) -> None:
        """End a member of this machine. Others end when they see a claim that is not an adoption."""
        if handle.handle is not None:
            self.platform.terminate(handle.handle)

    def launch(self, launch: Launch) -> Orphan:
        raise AssertionError(f"{launch.member} cannot be started among adopted members")

    def locate(self, handle: Orphan) -> dict[str, str]:
        raise AssertionError(f"{handle.name} was located by whoever started it")

    def find(self, place: Mapping[str, str]) -> Orphan | None:
        raise AssertionError(f"{place} was looked at before it was adopted")
