"""Relays the events of members to a callback, without too many requests to the store."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from zooid.core.runs.events import (
    BatchChanged,
    Evaluated,
    Event,
    MemberPrinted,
    ProfileProgress,
    RunStarted,
    ScalingWanted,
    StepCommitted,
)
from zooid.core.runs.store_rules import EVENT_LOOK_S
from zooid.store import EventReader, ObjectStore
from zooid.store.rosters import find_roster

OnEvent = Callable[[Event], None]

_LOCAL_INTERVAL_S = 0.1
_ONCE = (StepCommitted, Evaluated, BatchChanged, ScalingWanted)
"""Events of a step that are relayed once, though the first member of the next roster may tell them again."""
_NUM_REMEMBERED = 1000
"""Number of steps that are remembered of each kind of event."""
_NUM_RECENT = 3
"""Number of rosters whose events each poll looks for: members that leave write a little later. Each is a listing, and a
run whose members are replaced every few minutes has many rosters."""


class ProgressSum:
    """The summed progress of several profiling members, which all have equally much to do."""

    def __init__(self, num_members: int, on_event: OnEvent) -> None:
        self._num_members = num_members
        self._on_event = on_event
        self._done: dict[str, int] = {}

    def of(self, member: str) -> OnEvent:
        """Return the callback for the events of this member."""

        def take(event: Event) -> None:
            if isinstance(event, ProfileProgress):
                self._done[member] = event.done
                event = structs.replace(event, done=sum(self._done.values()), total=event.total * self._num_members)
            self._on_event(event)

        return take


class _Relayed:
    """The last steps of which events of one kind were relayed.

    A member that leaves may write its last events when others have written later ones already.
    """

    def __init__(self) -> None:
        self._steps: dict[int, None] = {}
        self._last_forgotten = -1

    def add(self, step: int) -> bool:
        """Note a step, and return whether it is new."""
        if step <= self._last_forgotten or step in self._steps:
            return False
        self._steps[step] = None
        if len(self._steps) > _NUM_REMEMBERED:
            first = next(iter(self._steps))
            del self._steps[first]
            self._last_forgotten = max(self._last_forgotten, first)
        return True

    def forget_from(self, step: int) -> None:
        """Forget this step and all later ones, because they are trained again."""
        self._steps = {each: None for each in self._steps if each < step}
        self._last_forgotten = min(self._last_forgotten, step - 1)


class Relay:
    """Calls back for every event of a run in the caller's thread."""

    def __init__(
        self,
        store: ObjectStore,
        on_event: OnEvent,
        roster: int = 0,
        guard: Callable[[], None] = lambda: None,
        told: Mapping[str, int] | None = None,
    ) -> None:
        """Relay the events of `roster`. `guard` is called before each poll and may raise.

        `told` is the progress of an earlier relay, whose events are left out.
        """
        self.told = dict(told or {})
        """Progress of the relay: the number of the next object in each writer's folder."""
        self.roster = roster
        self._guard = guard
        self._store = store
        self._readers = [EventReader(store, roster, begin=self.told)]
        """One reader for each roster of the claim. Members may still replace the last roster."""
        self._relayed = {kind: _Relayed() for kind in _ONCE}
        """Steps of the events that a later roster may repeat, and that are relayed once."""
        self._on_event = on_event
        self._interval_s = look_interval_s(store)
        self._last_s = 0.0

    def poll(self) -> None:
        """Relay new events, unless the last poll was a moment ago."""
        self._guard()
        if time.monotonic() - self._last_s >= self._interval_s:
            recent = self._readers[1:][-_NUM_RECENT:]
            self._relay_from([self._readers[0], *recent])  # to the first one the coordinator writes its own events

    def flush(self) -> None:
        """Relay all events that are in the store."""
        self._relay_from(list(self._readers))

    def _relay_from(self, readers: Sequence[EventReader]) -> None:
        """Relay new events of these readers, and of rosters that are new."""
        for reader in readers:
            self._relay(reader)
        while (roster := find_roster(self._store, self.roster, len(self._readers))) is not None:
            self._relay(self._readers[-1])  # events from before the roster was replaced
            if roster.ruling is not None and roster.ruling.kind == "rolled_back":
                for steps in self._relayed.values():
                    steps.forget_from(roster.resume_step)
            self._readers.append(EventReader(self._store, roster.number, roster.change, self.told))
            self._relay(self._readers[-1])
        self.told = {folder: number for reader in self._readers for folder, number in reader.next_numbers.items()}
        self._last_s = time.monotonic()

    def _relay(self, reader: EventReader) -> None:
        for event in reader.read_new():
            if not isinstance(event, _ONCE) or self._relayed[type(event)].add(event.step):
                self._on_event(event)


def look_interval_s(store: ObjectStore) -> float:
    """Time between two looks for events: short in a folder of this machine, and longer where requests cost money."""
    return _LOCAL_INTERVAL_S if store.url.startswith("file://") else EVENT_LOOK_S


def ignore(event: Event) -> None:
    """Ignore an event, for callers without a view."""


class PrintsOnly:
    """A callback that shows only the lines that the job prints, on standard output."""

    def __init__(self) -> None:
        self._num_members = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._num_members = len(event.members)
        elif isinstance(event, MemberPrinted):
            sys.stdout.write(f"{event.line(self._num_members)}\n")
            sys.stdout.flush()
