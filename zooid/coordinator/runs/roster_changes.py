"""Planned changes of who trains: new members are started ahead, and the roster changes when they are ready.

One change is carried out at a time. A change that cannot be carried out, since a new member has ended or another member
was lost meanwhile, is planned again for the roster that there is then.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from zooid.coordinator.runs.first_roster import roster_for
from zooid.coordinator.runs.startup_times import StartUpTimes
from zooid.core.errors import ObjectExists
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster, RosterSeat
from zooid.schedule.planned_rosters import Seats, refilled, with_replicas, with_successors, without_replica_of
from zooid.schedule.samples import even_shares
from zooid.store import ObjectStore
from zooid.store.planned_changes import find_newest_change
from zooid.store.rosters import find_roster, last_roster

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_LOCAL_LOOK_S = 0.05
"""Seconds between two looks, in a store that charges nothing."""

_LOST = "members were lost"
_MAX_FAILED = 5
"""A change is given up after so many processes have ended before they could join."""

Target = Callable[[Roster], Seats]
"""(the present roster) -> the seats that are wanted."""


@dataclass(frozen=True)
class WantedChange:
    """A change that is wanted, whatever the roster is when it can be carried out."""

    cause: str
    target: Target
    plan: str | None = None
    """Name of the plan that the members follow then; None if they keep theirs."""
    shares: tuple[int, ...] = ()
    """Number of grains of each replica; empty if replicas get equally many or keep their shares."""
    first_step: int = 0
    """The first step that the wanted seats may compute."""
    policy_replicas: int | None = None
    """Number of replicas that the job's scaling policy wants; None if something else asks for the change."""


@dataclass
class RosterChanges:
    """The planned changes of a run, one after the other."""

    store: ObjectStore
    number: int
    """Number of the claim under which members train."""
    start: Callable[[Sequence[RosterSeat], str], None]
    """Starts processes that wait to join in these seats of the plan with this name."""
    has_ended: Callable[[str], bool]
    """Returns whether the process of this name has ended."""
    has_room: Callable[[int], bool] = lambda _: True
    """Returns whether the platform can start so many more processes now."""
    startups: StartUpTimes = field(default_factory=StartUpTimes)
    """Times from the start of processes until they had their seats, or waited for the step that they were to begin."""
    _queue: list[WantedChange] = field(default_factory=list)
    _started: dict[str, str] = field(default_factory=dict)
    """Names of processes that wait to join, by the name of their seat."""
    _started_s: float = 0.0
    """When the first of them was started."""
    _running: set[str] = field(default_factory=set)
    """Names of processes that were started to join."""
    _names: set[str] = field(default_factory=set)
    """All names that were ever given."""
    _num_failed: int = 0
    """Number of processes that have ended before they could join in the present change."""
    _is_noted: bool = False
    """Whether the start-up of the present change's processes is noted."""
    _planned: PlannedChange | None = None
    _next_look_s: float = 0.0

    def want(self, wanted: WantedChange) -> None:
        """Carry out this change after those that were wanted before."""
        self._queue.append(wanted)

    def scale(self, num_replicas: int, cause: str) -> None:
        """Change the number of replicas. Members of the first replicas stay."""
        self.want(WantedChange(cause, self._with_replicas(num_replicas)))

    def follow_policy(self, num_replicas: int, first_step: int = 0) -> None:
        """Change the number of replicas as the scaling policy wants, no earlier than with the given step.

        This replaces what the policy has wanted before, as far as that is not done.
        """
        cause = f"the scaling policy wants {num_replicas} replica(s)"
        target = self._with_replicas(num_replicas)
        wanted = WantedChange(cause, target, first_step=first_step, policy_replicas=num_replicas)
        earlier = [change for change in self._queue if change.policy_replicas is not None]
        if not earlier:
            self.want(wanted)
        elif earlier[0].policy_replicas != num_replicas:
            self._queue[self._queue.index(earlier[0])] = wanted
            if self._queue[0] is wanted:
                self._planned = None

    def _with_replicas(self, num_replicas: int) -> Target:
        def target(roster: Roster) -> Seats:
            return with_replicas(roster, num_replicas, lambda replica, stage: self._name_of(f"r{replica}s{stage}"))

        return target

    def succeed(self, members: Collection[str], cause: str) -> None:
        """Let new processes take over the seats of these members, which then leave."""

        def target(roster: Roster) -> Seats:
            leaving = [name for name in roster.stages if name in members]
            return with_successors(roster, {name: self._name_of(name.partition("-")[0]) for name in leaving})

        self.want(WantedChange(cause, target))

    def refill(self, plan_copies: Sequence[RosterSeat]) -> None:
        """Replace lost members by new ones, unless that is wanted already. `plan_copies` are the planned copies."""
        if not any(wanted.cause == _LOST for wanted in self._queue):
            self.want(WantedChange(_LOST, lambda roster: refilled(roster, plan_copies, self._name_of)))

    def leave(self, member: str, cause: str) -> None:
        """Let a member leave without a successor, and with it the others of its replica."""

        def target(roster: Roster) -> Seats:
            return without_replica_of(roster, member) if member in roster.stages else (roster.members, roster.copies)

        self.want(WantedChange(cause, target))

    def follow(self, plan: Plan, name: str, cause: str) -> None:
        """Let new processes follow another plan, which is in the store under this name; all present members leave."""

        def target(roster: Roster) -> Seats:
            if roster.plan == name:
                return roster.members, roster.copies
            first = roster_for(plan, roster.run, roster.number, 0)
            members = [structs.replace(member, name=self._name_of(member.name)) for member in first.members]
            copies = [structs.replace(copy, name=self._name_of(copy.name)) for copy in first.copies]
            return tuple(members), tuple(copies)

        shares = roster_for(plan, "run", 0, 0).shares
        self.want(WantedChange(cause, target, name, shares))

    def poll(self) -> None:
        """Go on with the first wanted change, unless the last look was a moment ago."""
        pause_s = _LOCAL_LOOK_S if self.store.url.startswith("file://") else _LOOK_S
        if not self._queue or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + pause_s
        roster = last_roster(self.store, self.number)
        if roster is None or roster.guests:
            return  # its guests become members with the next step
        if self._is_done(roster):
            if self._running:
                self._note_startup()
            self._forget(roster)
            return
        self._drop_ended(roster)
        if self._num_failed >= _MAX_FAILED:
            logger.warning("the run stays as it is, although %s: new members fail", self._queue[0].cause)
            self._forget(roster)
            return
        seats = self._queue[0].target(roster)
        joiners = [seat for part in seats for seat in part if seat.name not in roster.stages]
        missing = [seat for seat in joiners if seat.name not in self._running]
        if missing and not self.has_room(len(missing)):
            return
        if missing:
            if not self._running:
                self._started_s = time.monotonic()
            self._running |= {seat.name for seat in missing}
            self.start(missing, roster.plan if self._queue[0].plan is None else self._queue[0].plan)
        if all(self._is_ready(seat.name) for seat in joiners):
            if joiners and self._queue[0].first_step:
                self._note_startup()  # what follows is waiting for that step
            self._plan(roster, seats)

    def _note_startup(self) -> None:
        """Learn how long the new processes took, once for each change."""
        if not self._is_noted:
            self._is_noted = True
            self.startups.note(len(self._running), time.monotonic() - self._started_s)

    def _forget(self, roster: Roster) -> None:
        """Turn to the next change that is wanted. Processes that have no seat in this roster need not wait for one."""
        surplus = [name for name in self._running if name not in roster.stages]
        self.store.delete([keys.joining(name, self.number) for name in surplus])
        self._queue.pop(0)
        self._planned = None
        self._started.clear()
        self._running.clear()
        self._num_failed = 0
        self._is_noted = False

    @property
    def wanted(self) -> Sequence[WantedChange]:
        """Changes that are not carried out yet."""
        return self._queue

    def _is_done(self, roster: Roster) -> bool:
        if self._planned is None:
            return (roster.members, roster.copies) == self._queue[0].target(roster)
        is_later = roster.change > self._planned.change
        return is_later and (roster.members, roster.copies) == (self._planned.members, self._planned.copies)

    def _drop_ended(self, roster: Roster) -> None:
        """Forget processes that wait no longer: those that have their seat, and those that ended before they had it.

        Others are started in place of the latter.
        """
        for seat, name in list(self._started.items()):
            if name in roster.stages:  # another member was lost since it joined, so the change is not done yet
                del self._started[seat]
                self._running.discard(name)
                self._planned = None
            elif name in roster.former or (name in self._running and self.has_ended(name)):
                logger.warning("%s has ended before it could join", name)
                self._num_failed += 1
                del self._started[seat]
                self._running.discard(name)
                self._planned = None

    def _name_of(self, seat: str) -> str:
        """The name of the process that waits for this seat, or a new name."""
        if seat not in self._started:
            used = self._names | {name for roster in self._rosters() for name in (*roster.stages, *roster.former)}
            number = 1
            while (name := f"{seat}-{number}") in used:
                number += 1
            self._names.add(name)
            self._started[seat] = name
        return self._started[seat]

    def _rosters(self) -> list[Roster]:
        roster = last_roster(self.store, self.number)
        return [] if roster is None else [roster]

    def _is_ready(self, member: str) -> bool:
        return keys.joining(member, self.number) in self.store.list(keys.joining_under(self.number))

    def _plan(self, roster: Roster, seats: Seats) -> None:
        """Write the change, unless it is planned already for this roster."""
        members, copies = seats
        planned = self._planned
        if planned is not None and planned.change == roster.change and (planned.members, planned.copies) == seats:
            return
        newest = find_newest_change(self.store, roster)
        num_replicas = max(member.replica for member in members) + 1
        shares = even_shares(sum(roster.shares), num_replicas)
        change = PlannedChange(
            run=roster.run,
            number=roster.number,
            change=roster.change,
            attempt=1 if newest is None else newest.attempt + 1,
            cause=self._queue[0].cause,
            members=members,
            shares=self._queue[0].shares or (roster.shares if num_replicas == roster.num_replicas else shares),
            copies=copies,
            plan=roster.plan if self._queue[0].plan is None else self._queue[0].plan,
            first_step=self._queue[0].first_step,
        )
        try:
            key = keys.planned_change(change.number, change.change, change.attempt)
            self.store.create(key, encode_record(change))
        except ObjectExists:
            return  # somebody else has planned one; the next look finds it
        if find_roster(self.store, roster.number, roster.change + 1) is None:
            self._planned = change
