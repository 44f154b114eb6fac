"""Reads back what the members of a run recorded of a step."""

from dataclasses import dataclass

from zooid.core.errors import InputError
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.timeline import Timeline, joined
from zooid.store import ObjectStore, open_store

_MOST_NAMED = 8


@dataclass(frozen=True)
class RecordedStep:
    """One step of a run, of all members that recorded it."""

    run: str
    """URL of the run's folder."""
    step: int
    timeline: Timeline


def timeline(store: str, *, step: int | None = None) -> RecordedStep:
    """The timeline of a step of the run in a store's folder; of the latest that was recorded, if none is named."""
    objects = open_store(store)
    recorded = _recorded_steps(objects)
    wanted = recorded if step is None else [number for number in recorded if number == step]
    for number in reversed(wanted):
        found = objects.list(keys.timelines_of(number))
        if found:  # a folder of which all objects were deleted may still be listed
            return RecordedStep(objects.url, number, joined(_read(objects, key) for key in found))
    if recorded and step is not None:
        raise InputError(f"step {step} of {objects.url} was not recorded; there is {_in_words(recorded)}")
    raise InputError(
        f"{objects.url} has no recorded step: members record their last full step when they have ended well; check "
        "the URL, or train there first"
    )


def _recorded_steps(objects: ObjectStore) -> list[int]:
    return keys.recorded_steps(objects.list_folders(keys.TIMELINES))


def _read(objects: ObjectStore, key: str) -> Timeline:
    return decode_record(bytes(objects.get(key)), Timeline, f"{objects.url}/{key}")


def _in_words(steps: list[int]) -> str:
    named = ", ".join(str(step) for step in steps[-_MOST_NAMED:])
    return f"step {named}" if len(steps) <= _MOST_NAMED else f"step … {named}"
