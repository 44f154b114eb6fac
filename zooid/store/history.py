"""The history of a run, as a reader of its folder finds it: every step once, whatever members were lost."""

from zooid.core.runs import keys
from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Evaluated,
    Event,
    ScalingWanted,
    StepCommitted,
    StoppedEarly,
)
from zooid.store.event_log import EventReader
from zooid.store.rosters import read_roster
from zooid.store.store_protocol import ObjectStore


def read_history(store: ObjectStore) -> list[Event]:
    """Return all events of a run from its beginning, by roster and time, with each step once.

    Events of a roster count only for steps before the one with which the next roster resumed.
    """
    ends = {roster: _end_before(store, *roster) for roster in keys.rosters(store.list(keys.ROSTERS))}
    listed = store.list_folders(keys.EVENTS)
    told = [roster for name in listed if (roster := keys.roster_in(name)) is not None]
    history: list[Event] = []
    for roster in sorted(told):
        later = [end for other, end in ends.items() if other > roster]
        history += [
            event for event in EventReader(store, *roster).read_new() if _counts(event, min(later, default=None))
        ]
    return _once(history)


def _once(history: list[Event]) -> list[Event]:
    """Each step, evaluation and change of the batch once: a member that was taken for lost may have told of it late."""
    seen: set[tuple[type, int]] = set()
    kept: list[Event] = []
    for event in reversed(history):
        if isinstance(event, StepCommitted | Evaluated | BatchChanged | ScalingWanted):
            if (type(event), event.step) in seen:
                continue
            seen.add((type(event), event.step))
        kept.append(event)
    return kept[::-1]


_End = tuple[int, bool]
"""A step, and whether what comes before it, as an evaluation, still counts."""


def _end_before(store: ObjectStore, number: int, change: int) -> _End:
    """Where what earlier rosters have told ends to count."""
    roster = read_roster(store, number, change)
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
