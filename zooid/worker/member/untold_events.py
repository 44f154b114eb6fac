"""Events that the first member of a roster was lost before it could write."""

from collections.abc import Iterable, Iterator

from zooid.core.runs.events import BatchChanged, Evaluated, StepCommitted
from zooid.core.runs.roster import Roster
from zooid.store import ObjectStore
from zooid.store.event_log import last_told


def untold_events(
    store: ObjectStore, recent: Iterable[StepCommitted | Evaluated | BatchChanged], before: Roster, roster: Roster
) -> Iterator[StepCommitted | Evaluated | BatchChanged]:
    """The recent events under the roster before that its lost first member has not written."""
    last_step, last_evaluation = last_told(store, before.members[0].name, roster.number, roster.change - 1)
    # evaluations from this step on are made, or told, under the new roster itself
    end_of_evaluations = roster.resume_step if roster.is_between_steps else roster.resume_step + 1
    for event in recent:
        if isinstance(event, StepCommitted):
            first, end = last_step + 1, roster.resume_step
        elif isinstance(event, BatchChanged):  # one that came right after the last step may be told twice
            first, end = last_step + 1, end_of_evaluations
        else:
            first, end = last_evaluation + 1, end_of_evaluations
        if max(first, before.first_computed) <= event.step < end:
            yield event
