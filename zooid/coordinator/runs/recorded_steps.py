"""Timelines of steps that the members of a run have recorded."""

from dataclasses import dataclass

from zooid.core.errors import InputError
from zooid.core.runs import keys
from zooid.core.runs.timeline import Timeline, joined
from zooid.store import open_store
from zooid.store.stored_records import read_record

_MAX_NAMED = 8


@dataclass(frozen=True)
class RecordedStep:
    """One step of a run, with the timeline of all members that recorded it."""

    run: str
    """URL of the run's folder."""
    step: int
    timeline: Timeline


def timeline(store: str, *, step: int | None = None) -> RecordedStep:
    """Return the recorded timeline of a step of a run; by default of the latest recorded step."""
    folder = open_store(store)
    recorded = keys.recorded_steps(folder.list_folders(keys.TIMELINES))
    candidates = recorded if step is None else [number for number in recorded if number == step]
    for number in reversed(candidates):
        timeline_keys = folder.list(keys.timelines_of(number))
        if timeline_keys:  # a folder may still be listed after all its objects were deleted
            return RecordedStep(folder.url, number, joined(read_record(folder, key, Timeline) for key in timeline_keys))
    if recorded and step is not None:
        steps = ", ".join(map(str, recorded[-_MAX_NAMED:]))
        raise InputError(
            f"step {step} of {folder.url} was not recorded; give one of {'… ' * (len(recorded) > _MAX_NAMED)}{steps}"
        )
    raise InputError(
        f"{folder.url} has no recorded step: members record their last full step when they end successfully; check the "
        "URL, or train there first"
    )
