"""The history of a run, as a reader of its folder finds it: every step once, whatever members were lost."""

from contextlib import suppress
from dataclasses import dataclass, field

from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Evaluated,
    Event,
    ScalingExpected,
    ScalingWanted,
    StepCommitted,
    StoppedEarly,
)
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import Adoption
from zooid.store.event_log import EventReader
from zooid.store.rosters import find_roster, read_roster
from zooid.store.store_protocol import ObjectStore

_RosterLabel = tuple[int, int]
"""Number and change of a roster."""
_NUM_OPEN = 2
"""Number of newest rosters under which members may still tell something."""


@dataclass
class KnownHistory:
    """What a reader knows of a run already, so that another look needs few requests."""

    max_objects: int | None = None
    """Largest number of objects of one writer that the first look reads; of longer ones, a sample is read."""
    claim: int = -1
    """Number of the newest claim; -1 before the first look."""
    number: int = 0
    """Number of the claim under which the newest members were started."""
    rosters: dict[_RosterLabel, Roster] = field(default_factory=dict)
    _readers: dict[_RosterLabel, EventReader] = field(default_factory=dict)
    num_earlier: int = 0
    """Number of events from before the newest members; theirs come after them."""
    _told: dict[_RosterLabel, list[Event]] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)

    @property
    def roster(self) -> Roster | None:
        """The roster by which the newest members train; None before it is written."""
        return self.rosters.get((self.number, self._num_rosters - 1))

    @property
    def first_roster(self) -> Roster | None:
        """The first roster of the newest members, whose seats their plan describes."""
        return self.rosters.get((self.number, 0))

    @property
    def _num_rosters(self) -> int:
        return sum(number == self.number for number, _ in self.rosters)

    @property
    def is_sampled(self) -> bool:
        """Whether the first look has left out events."""
        return any(reader.has_skipped for reader in self._readers.values())

    def begin(self, store: ObjectStore) -> None:
        """Read everything that the folder holds."""
        self.rosters = {label: read_roster(store, *label) for label in keys.rosters(store.list(keys.ROSTERS))}
        told = [label for name in store.list_folders(keys.EVENTS) if (label := keys.roster_in(name)) is not None]
        self.claim = max(keys.numbers(store.list(keys.CLAIMS)), default=0)
        self.number = _members_claim(store, self.claim)
        for label in sorted({*told, *self.rosters}):
            self._open(store, label)
        self._read(sorted(self._readers))

    def follow(self, store: ObjectStore) -> None:
        """Read what is new: one request for a claim, one for a roster, and few for events."""
        while _exists(store, keys.claim(self.claim + 1)):
            self.claim += 1
            self.number = _members_claim(store, self.claim)
        while (roster := find_roster(store, self.number, self._num_rosters)) is not None:
            self.rosters[roster.number, roster.change] = roster
            self._open(store, (roster.number, roster.change))
        if (self.number, 0) not in self._readers:
            self._open(store, (self.number, 0))
        labels = sorted(label for label in self._readers if label[0] == self.number)
        self._read(sorted({labels[0], *labels[-_NUM_OPEN:]}))  # the coordinator tells under the first one

    def events(self) -> list[Event]:
        """All events that count, by roster and time, with each step once."""
        if not self._events:
            ends = {label: _end_before(roster) for label, roster in self.rosters.items()}
            history: list[Event] = []
            for label in sorted(self._told):
                end = min((end for other, end in ends.items() if other > label), default=None)
                history += [event for event in self._told[label] if _counts(event, end)]
            self._events = _once(history)
            present = {id(event) for label, told in self._told.items() if label[0] == self.number for event in told}
            self.num_earlier = sum(id(event) not in present for event in self._events)
        return self._events

    def _open(self, store: ObjectStore, label: _RosterLabel) -> None:
        if label not in self._readers:
            self._readers[label] = EventReader(store, *label, max_objects=self.max_objects)
        self._events = []

    def _read(self, labels: list[_RosterLabel]) -> None:
        for label in labels:
            if told := self._readers[label].read_new():
                self._told.setdefault(label, []).extend(told)
                self._told[label].sort(key=lambda event: event.at_s)
                self._events = []


def read_history(store: ObjectStore, known: KnownHistory | None = None) -> list[Event]:
    """Return all events of a run from its beginning, by roster and time, with each step once.

    Events of a roster count only for steps before the one with which the next roster resumed. A reader that comes again
    gives what it knows already.
    """
    known = known or KnownHistory()
    if known.claim < 0:
        known.begin(store)
    else:
        known.follow(store)
    return known.events()


def _members_claim(store: ObjectStore, claim: int) -> int:
    """Number of the claim under which the members of this claim were started: its own, unless it adopts others."""
    with suppress(ObjectNotFound, RecordError):
        return decode_record(bytes(store.get(keys.claim(claim))), Adoption, "a claim").roster
    return claim


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except ObjectNotFound:
        return False
    return True


def _once(history: list[Event]) -> list[Event]:
    """Each step, evaluation and change of the batch once: a member that was taken for lost may have told of it late."""
    seen: set[tuple[type, int]] = set()
    kept: list[Event] = []
    for event in reversed(history):
        if isinstance(event, StepCommitted | Evaluated | BatchChanged | ScalingWanted | ScalingExpected):
            if (type(event), event.step) in seen:
                continue
            seen.add((type(event), event.step))
        kept.append(event)
    return kept[::-1]


_End = tuple[int, bool]
"""A step, and whether what comes before it, as an evaluation, still counts."""


def _end_before(roster: Roster) -> _End:
    """Where what earlier rosters have told ends to count."""
    return roster.resume_step, roster.resume_step > 0 and not roster.is_between_steps


def _counts(event: Event, end: _End | None) -> bool:
    """Whether an event is of a step that was not run again later; what has no step always counts."""
    match event:
        case _ if end is None:
            return True
        case StepCommitted():
            return event.step < end[0]
        case Evaluated() | CheckpointSaved() | StoppedEarly() | BatchChanged() | ScalingWanted():  # after so many steps
            return (event.step, False) < end
        case _:
            return True
