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
from zooid.schedule.planned_rosters import (
    Seats,
    planned_change,
    refilled,
    with_offers,
    with_replicas,
    with_successors,
    without_replica_of,
)
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
    decides_size: bool = False
    """Whether it decides the number of replicas, so that those that were lost before are not missed any more."""
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
    has_room: Callable[[Sequence[RosterSeat], str], bool] = lambda seats, plan: True
    """Returns whether the platform can start these processes now."""
    offer_of: Callable[[str], str] = lambda member: ""
    """Returns the name of the offer on which a member runs."""
    dismiss: Callable[[str], None] = lambda member: None
    """Ends a process that waits to join, and is not wanted any more."""
    taken: set[str] = field(default_factory=set)
    """All names that were ever given, also by an earlier coordinator of the same members."""
    is_insured: bool = False
    """Whether every stage is held by two members or more."""
    startups: StartUpTimes = field(default_factory=StartUpTimes)
    """Times from the start of processes until they had their seats, or waited for the step that they were to begin."""
    _queue: list[WantedChange] = field(default_factory=list)
    _started: dict[str, str] = field(default_factory=dict)
    """Names of processes that wait to join, by the name of their seat."""
    _started_s: float = 0.0
    """When the last of them was started. Others may have waited for it, since an earlier process for its seat ended."""
    _running: set[str] = field(default_factory=set)
    """Names of processes that were started to join."""
    _num_failed: int = 0
    """Number of processes that have ended before they could join in the present change."""
    _is_noted: bool = False
    """Whether the start-up of the present change's processes is noted."""
    _planned: PlannedChange | None = None
    _num_refilled: int = 0
    """Number of replicas that the run had before members were lost; 0 if nobody is missing."""
    _is_blocked: bool = False
    """Whether there was no room for new members at the last look."""
    _next_look_s: float = 0.0

    def want(self, wanted: WantedChange) -> WantedChange:
        """Carry out this change after those that were wanted before."""
        self._queue.append(wanted)
        return wanted

    def withdraw(self, wanted: WantedChange) -> bool:
        """Give up a change, unless its seats are planned already. Processes that wait for them are ended."""
        if wanted not in self._queue:
            return True
        if wanted is not self._queue[0]:
            self._queue.remove(wanted)
            return True
        if self._planned is not None:
            return False
        waiting = set(self._running)
        self._forget()
        for name in waiting:
            self.dismiss(name)
        return True

    @property
    def is_blocked(self) -> bool:
        """Whether the first wanted change waits until there is room for its new members."""
        return bool(self._queue) and self._is_blocked

    def scale(self, num_replicas: int, cause: str) -> WantedChange:
        """Change the number of replicas. Members of the first replicas stay."""
        return self._resize(WantedChange(cause, self._with_replicas(num_replicas), decides_size=True))

    def follow_policy(self, num_replicas: int, first_step: int = 0) -> None:
        """Change the number of replicas as the scaling policy wants, no earlier than with the given step.

        This replaces what the policy has wanted before, as far as that is not done.
        """
        cause = f"the scaling policy wants {num_replicas} replica(s)"
        target = self._with_replicas(num_replicas)
        wanted = WantedChange(cause, target, decides_size=True, first_step=first_step, policy_replicas=num_replicas)
        earlier = [change for change in self._queue if change.policy_replicas is not None]
        if not earlier:
            self._resize(wanted)
        elif earlier[0].policy_replicas != num_replicas:
            self._queue[self._queue.index(earlier[0])] = wanted
            if self._queue[0] is wanted:
                self._planned = None

    def _with_replicas(self, num_replicas: int) -> Target:
        def target(roster: Roster) -> Seats:
            copy = (lambda stage: self._name_of(f"c0s{stage}")) if self.is_insured else None
            return with_replicas(roster, num_replicas, lambda replica, s: self._name_of(f"r{replica}s{s}"), copy)

        return target

    def succeed(self, members: Collection[str], cause: str) -> None:
        """Let new processes take over the seats of these members, which then leave."""

        def target(roster: Roster) -> Seats:
            leaving = [name for name in roster.stages if name in members]
            return with_successors(roster, {name: self._name_of(name, name.partition("-")[0]) for name in leaving})

        self.want(WantedChange(cause, target))

    def refill(self, plan_copies: Sequence[RosterSeat]) -> None:
        """Replace lost members by new ones, unless that is wanted already. `plan_copies` are the planned copies.

        If there is no room for all of them, as many replicas as possible are completed, and the others later.
        """

        def target(roster: Roster) -> Seats:
            self._num_refilled = num_wanted = max(self._num_refilled, roster.num_planned_replicas)
            for num_replicas in range(num_wanted, roster.num_replicas, -1):
                wanted = structs.replace(roster, num_planned_replicas=num_replicas)
                seats = refilled(wanted, plan_copies, self._name_of)
                missing = self._missing(roster, seats)
                if not missing or self.has_room(missing, roster.plan):
                    return seats
            return refilled(structs.replace(roster, num_planned_replicas=num_wanted), plan_copies, self._name_of)

        if not any(wanted.cause == _LOST for wanted in self._queue):
            self.want(WantedChange(_LOST, target))

    def _missing(self, roster: Roster, seats: Seats) -> list[RosterSeat]:
        """The seats for which no process was started yet."""
        return [s for part in seats for s in part if s.name not in roster.stages and s.name not in self._running]

    def _resize(self, wanted: WantedChange) -> WantedChange:
        """Want a change that decides the number of replicas, whatever number was wanted before."""
        begun = self._queue[:1] if self._running or self._planned is not None else []
        self._queue = [*begun, *(each for each in self._queue[len(begun) :] if each.cause != _LOST)]
        self._num_refilled = 0
        return self.want(wanted)

    def leave(self, member: str, cause: str) -> None:
        """Let a member leave without a successor, and with it the others of its replica."""

        def target(roster: Roster) -> Seats:
            return without_replica_of(roster, member) if member in roster.stages else (roster.members, roster.copies)

        self._resize(WantedChange(cause, target, decides_size=True))

    def hire(self, plan: Plan, name: str, cause: str) -> WantedChange:
        """Follow another plan of one stage, which is in the store under this name.

        Members on its offers stay, the missing ones join, and all others leave.
        """
        wanted = [offer.name for offer in plan.member_offers]

        def target(roster: Roster) -> Seats:
            return with_offers(roster, wanted, self.offer_of, self._name_of)

        shares = roster_for(plan, "run", 0, 0).shares
        return self._resize(WantedChange(cause, target, name, decides_size=True, shares=shares))

    def follow(self, plan: Plan, name: str, cause: str) -> WantedChange:
        """Let new processes follow another plan, which is in the store under this name; all present members leave."""

        def target(roster: Roster) -> Seats:
            if roster.plan == name:
                return roster.members, roster.copies
            first = roster_for(plan, roster.run, roster.number, 0)
            members = [structs.replace(member, name=self._name_of(member.name)) for member in first.members]
            copies = [structs.replace(copy, name=self._name_of(copy.name)) for copy in first.copies]
            return tuple(members), tuple(copies)

        shares = roster_for(plan, "run", 0, 0).shares
        return self._resize(WantedChange(cause, target, name, decides_size=True, shares=shares))

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
            done = self._queue[0]
            self._forget(roster.stages)
            is_partial = done.cause == _LOST and roster.num_replicas < self._num_refilled  # there was no room for all
            if is_partial and not any(wanted.decides_size for wanted in self._queue):
                self._queue.append(done)
            elif done.cause == _LOST:
                self._num_refilled = 0
            return
        self._drop_ended(roster)
        if self._num_failed >= _MAX_FAILED:
            logger.warning("the run stays as it is, although %s: new members fail", self._queue[0].cause)
            self._forget(roster.stages)
            return
        seats = self._queue[0].target(roster)
        joiners = [seat for part in seats for seat in part if seat.name not in roster.stages]
        missing = self._missing(roster, seats)
        plan_name = roster.plan if self._queue[0].plan is None else self._queue[0].plan
        self._is_blocked = bool(missing) and not self.has_room(missing, plan_name)
        if self._is_blocked:
            self._let_others_pass()
            return
        if missing:
            self._started_s = time.monotonic()
            self._running |= {seat.name for seat in missing}
            self.start(missing, plan_name)
        if self._are_ready([seat.name for seat in joiners]):
            if joiners and self._queue[0].first_step:
                self._note_startup()  # what follows is waiting for that step
            self._plan(roster, seats)

    def _note_startup(self) -> None:
        """Learn how long the new processes took, once for each change."""
        if not self._is_noted:
            self._is_noted = True
            self.startups.note(len(self._running), time.monotonic() - self._started_s)

    def _let_others_pass(self) -> None:
        """Turn to another change while there is no room for this one, if no process was started for it."""
        if len(self._queue) > 1 and not self._running:
            waiting = self._queue[0]
            self._forget()
            self._queue.append(waiting)

    def _forget(self, seated: Collection[str] = ()) -> None:
        """Turn to the next change that is wanted. Processes that are not seated need not wait any longer."""
        self.store.delete([keys.joining(name, self.number) for name in self._running.difference(seated)])
        self._queue.pop(0)
        self._planned = None
        self.taken -= set(self._started.values()) - self._running  # of processes that were never started
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

    def _name_of(self, seat: str, stem: str = "") -> str:
        """The name of the process that waits for this seat. A new name has this stem, or that of the seat."""
        if seat not in self._started:
            self._started[seat] = self.new_name(stem or seat)
        return self._started[seat]

    def new_name(self, stem: str) -> str:
        """Return a name that nobody has had, with this stem and a number."""
        used = self.taken | {name for roster in self._rosters() for name in (*roster.stages, *roster.former)}
        number = 1
        while (name := f"{stem}-{number}") in used:
            number += 1
        self.taken.add(name)
        return name

    def _rosters(self) -> list[Roster]:
        roster = last_roster(self.store, self.number)
        return [] if roster is None else [roster]

    def _are_ready(self, members: Sequence[str]) -> bool:
        ready = self.store.list(keys.joining_under(self.number)) if members else ()
        return all(keys.joining(member, self.number) in ready for member in members)

    def _plan(self, roster: Roster, seats: Seats) -> None:
        """Write the change, unless it is planned already for this roster."""
        planned = self._planned
        if planned is not None and planned.change == roster.change and (planned.members, planned.copies) == seats:
            return
        newest = find_newest_change(self.store, roster)
        wanted, attempt = self._queue[0], 1 if newest is None else newest.attempt + 1
        # A plan's own shares are for the job's batch size, which a scaling policy may have changed since.
        shares = wanted.shares if sum(wanted.shares) == sum(roster.shares) else ()
        change = planned_change(
            roster,
            seats,
            wanted.cause,
            attempt,
            shares=shares,
            plan=wanted.plan,
            first_step=wanted.first_step,
        )
        try:
            key = keys.planned_change(change.number, change.change, change.attempt)
            self.store.create(key, encode_record(change))
        except ObjectExists:
            return  # somebody else has planned one; the next look finds it
        if find_roster(self.store, roster.number, roster.change + 1) is None:
            self._planned = change
