"""Observation of a run through its folder alone, with few requests; it changes nothing there."""

import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from zooid.coordinator.measurements.scratch_folder import reject_memory_store
from zooid.coordinator.runs.lease import SILENCE_S, LeaseObserver
from zooid.coordinator.runs.platform_choice import any_platform
from zooid.coordinator.runs.relay import look_interval_s
from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.events import MemberTrained, StepCommitted
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.observed_run import ENDED, ObservedRun, RunState
from zooid.core.runs.roster import Roster
from zooid.core.runs.ticket import title_of
from zooid.platforms import Platform
from zooid.schedule.samples import samples_of
from zooid.store import ObjectStore, open_store, read_history
from zooid.store.checkpoint_index import complete_steps, read_manifest
from zooid.store.history import KnownHistory
from zooid.store.stored_records import read_plan, read_record

_VIEW_INTERVAL_S = 0.5
"""The shortest time between two looks of somebody who watches."""
_MAX_OBJECTS = 400
"""Largest number of objects of one writer that the first look reads. A day of training may write 288,000."""
_NUM_RECENT = 20
_SLOW_STEPS = 3.0
"""Members of another machine count as gone after this many steps of silence, but not before SILENCE_S."""


def watch(store: str) -> Iterator[ObservedRun]:
    """Yield what the folder of a run tells, again and again, until nobody trains any more."""
    reject_memory_store(store)
    observer = RunObserver(open_store(store))
    while True:
        observed = observer.look()
        yield observed
        if observed.state in ENDED:
            return
        time.sleep(max(observer.interval_s, _VIEW_INTERVAL_S))


def observe(store: str) -> ObservedRun:
    """Return what the folder of a run tells now; this waits for the heartbeat of a coordinator elsewhere."""
    reject_memory_store(store)
    return RunObserver(open_store(store)).settled()


class RunObserver:
    """Follows one run."""

    def __init__(self, store: ObjectStore, platform: Platform | None = None) -> None:
        """`platform` finds members whose coordinator is lost."""
        self.interval_s = look_interval_s(store)
        self._store = store
        self._platform = platform or any_platform(forks=False)
        self._known = KnownHistory(_MAX_OBJECTS)
        self._ledger: tuple[int, Ledger] | None = None
        """Ledger of a checkpoint, and its step, if the run is too long to read all its events."""
        self._lease: LeaseObserver | None = None
        self._plan: tuple[int, Plan] | None = None
        """The plan of the claim with this number."""
        self._handles: dict[str, MemberHandle | None] = {}
        """Handles of members, by their key; None for members that cannot be seen from here."""
        self._saved: tuple[int, int] | None = None
        """Step of the last checkpoint, and number of steps of the run, if nobody trains."""
        self._num_events = -1
        self._heard_s = 0.0
        """When the number of events has last changed."""
        self._was_heard = False
        """Whether the number of events has changed since the first look."""

    @property
    def number(self) -> int:
        """Number of the claim under which the present members were started, or will be."""
        return self._known.number

    def settled(self) -> ObservedRun:
        """Look until it is known whether somebody trains."""
        while (observed := self.look()).state == "listening":
            time.sleep(self.interval_s)
        return observed

    def look(self) -> ObservedRun:
        """Read what is new; if that is the end of the run, read once more what was written before it."""
        observed = self._look()
        return self._look() if observed.state in ENDED else observed

    def _look(self) -> ObservedRun:
        events = read_history(self._store, self._known)
        self._listen(len(events))
        if self._known.is_sampled and self._ledger is None:
            self._ledger = self._read_ledger()
        if self._lease is None or self._lease.number != self._known.claim:
            self._lease = LeaseObserver(self._store, self._known.claim)
        lease, roster = self._lease.look(), self._known.roster
        plan = None if roster is None else self._read_plan()
        gone = frozenset[str]()
        state: RunState
        if lease == "unsure":
            state = "listening"
        elif lease == "alive":
            state = "preparing" if roster is None else "training"
        else:
            if lease == "silent" and roster is not None:
                gone = frozenset(seat.name for seat in roster.seats if self._is_alive(seat.name) is False)
            state = self._unsupervised(roster, gone) if lease == "silent" and roster is not None else "interrupted"
            if state == "interrupted":
                state = self._read_end()
        return ObservedRun(
            store=self._store.url,
            state=state,
            at_s=time.time(),
            events=events,
            num_earlier=self._known.num_earlier,
            first_roster=self._known.first_roster,
            roster=roster,
            plan=plan,
            gone=gone,
            ledger=self._ledger[1] if self._ledger is not None else Ledger(),
            ledger_step=self._ledger[0] if self._ledger is not None else 0,
            saved_step=self._saved[0] if state in ENDED and self._saved is not None else None,
            num_steps=self._saved[1] if self._saved is not None else plan.num_steps if plan is not None else None,
        )

    def _listen(self, num_events: int) -> None:
        """Note when the number of events has last changed."""
        if num_events != self._num_events:
            self._was_heard = self._num_events >= 0
            self._num_events, self._heard_s = num_events, time.monotonic()

    def _unsupervised(self, roster: Roster, gone: Collection[str]) -> RunState:
        """The state of members whose coordinator is lost, as far as processes and events tell."""
        present = self._known.events()[self._known.num_earlier :]
        trained = {event.member for event in present if isinstance(event, MemberTrained)}
        left = [seat.name for seat in roster.seats if seat.name not in gone and seat.name not in trained]
        if any(self._is_alive(name) for name in left):
            return "unattended"
        steps_s = [event.step_s for event in present[-_NUM_RECENT:] if isinstance(event, StepCommitted)]
        patience_s = max(SILENCE_S, _SLOW_STEPS * max(steps_s, default=0.0))
        if not left or time.monotonic() - self._heard_s >= patience_s:
            return "interrupted"
        return "unattended" if self._was_heard else "listening"

    def _is_alive(self, member: str) -> bool | None:
        """Whether the process of a member runs; None if it is on another machine, or was never recorded."""
        key = keys.handle(member, self.number)
        if key not in self._handles:
            self._handles[key] = None
            with suppress(ObjectNotFound, RecordError):
                read = read_record(self._store, key, MemberHandle)
                self._handles[key] = read if self._platform.watch(read, title_of(member, self.number)) else None
        handle = self._handles[key]
        if handle is None:
            return None
        listed, title = self._platform.members(handle.run), title_of(member, self.number)
        return title in listed and listed[title] is None

    def _read_end(self) -> RunState:
        """The state of a run that nobody trains, by its last checkpoint."""
        steps = complete_steps(self._store)
        if not steps:
            return "not begun"
        manifest = read_manifest(self._store, steps[-1])
        ledger, num_steps = manifest.ledger, samples_of(manifest).num_steps
        self._saved = (manifest.step, num_steps)
        if manifest.step >= num_steps or ledger.is_complete_early:
            return "complete"
        return "stopped" if ledger.by_request else "interrupted"

    def _read_ledger(self) -> tuple[int, Ledger]:
        steps = complete_steps(self._store)
        return (steps[-1], read_manifest(self._store, steps[-1]).ledger) if steps else (0, Ledger())

    def _read_plan(self) -> Plan | None:
        if self._plan is None or self._plan[0] != self.number:
            try:
                self._plan = (self.number, read_plan(self._store, self.number))
            except ObjectNotFound:  # somebody has deleted it
                return None
        return self._plan[1]
