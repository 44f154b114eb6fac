"""What must be so after every run, whatever has happened to it. Every check returns what is wrong, in words."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import zooid
from lab.footprints import Footprint, reads_by_step
from zooid.core.runs import keys
from zooid.core.runs.events import Evaluated, StepCommitted
from zooid.store import EventReader, ObjectStore, open_store, read_history
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.rosters import read_roster


@dataclass(frozen=True)
class Ending:
    """How a run has ended."""

    state: Mapping[str, torch.Tensor]
    steps: tuple[StepCommitted, ...]
    """The steps of the history, each once."""
    evaluations: tuple[Evaluated, ...]
    loss_scale: tuple[float, int]
    """The factor, and the number of good steps since it has changed."""


@dataclass(frozen=True)
class Told:
    """What was told under one roster."""

    resume_step: int
    steps: tuple[StepCommitted, ...]


def read_ending(url: str) -> Ending:
    store = open_store(url)
    history = read_history(store)
    manifest = read_manifest(store, last_step(store))
    return Ending(
        state=zooid.load_checkpoint(url),
        steps=tuple(event for event in history if isinstance(event, StepCommitted)),
        evaluations=tuple(event for event in history if isinstance(event, Evaluated)),
        loss_scale=(manifest.loss_scale, manifest.num_good_steps),
    )


def read_told(store: ObjectStore) -> list[Told]:
    """What was told under every roster, in their order."""
    return [
        Told(
            read_roster(store, *roster).resume_step,
            tuple(event for event in EventReader(store, *roster).read_new() if isinstance(event, StepCommitted)),
        )
        for roster in keys.rosters(store.list(keys.ROSTERS))
    ]


def telling_faults(rosters: Sequence[Told], *, may_repeat: bool) -> list[str]:
    """Steps that were told more than once. A step that a later roster has run again counts under that one only."""
    counts: Counter[int] = Counter()
    for place, told in enumerate(rosters):
        end = min((later.resume_step for later in rosters[place + 1 :]), default=math.inf)
        counts.update(event.step for event in told.steps if event.step < end)
    doubled = sorted(step for step, count in counts.items() if count > 1)
    return [f"steps told twice: {doubled}"] if doubled and not may_repeat else []


def sample_faults(steps: Sequence[StepCommitted], batches: Sequence[Sequence[int]]) -> list[str]:
    """Steps that are missing, doubled or out of order, or that tell of a wrong number of samples."""
    told = [event.step for event in steps]
    if told != list(range(len(batches))):
        return [f"the history has the steps {told}"]
    wrong = [event.step for event in steps if event.num_samples != len(batches[event.step])]
    return [f"steps with a wrong number of samples: {wrong}"] if wrong else []


def reading_faults(footprints: Mapping[str, Sequence[Footprint]], batches: Sequence[Sequence[int]]) -> list[str]:
    """Steps of which a sample was never read by a member that took part in them."""
    missing = {}
    for step, (batch, reads) in enumerate(zip(batches, reads_by_step(footprints, batches), strict=True)):
        seen = {line.number for lines in reads.values() for line in lines}
        if unread := set(batch) - seen:
            missing[step] = sorted(unread)
    return [f"samples that nobody has read, by step: {missing}"] if missing else []


def difference_faults(ending: Ending, reference: Ending, tolerance: float) -> list[str]:
    """What differs from the run that nobody has disturbed."""
    faults = []
    if ending.state.keys() != reference.state.keys():
        faults.append(f"the state dict has other names: {sorted(ending.state.keys() ^ reference.state.keys())}")
    else:
        distances = {name: _distance(ending.state[name], value) for name, value in reference.state.items()}
        if far := {name: value for name, value in distances.items() if not value <= tolerance}:
            faults.append(f"the state dict differs: {far}")
    faults += _loss_faults("losses", ending.steps, reference.steps, tolerance)
    faults += _loss_faults("evaluations", ending.evaluations, reference.evaluations, tolerance)
    skipped, skipped_there = ([event.step for event in each.steps if event.is_skipped] for each in (ending, reference))
    if skipped != skipped_there:
        faults.append(f"the steps {skipped} were skipped instead of {skipped_there}")
    if ending.loss_scale != reference.loss_scale:
        faults.append(f"the loss scale is {ending.loss_scale} instead of {reference.loss_scale}")
    return faults


def _loss_faults(
    name: str,
    found: Sequence[StepCommitted | Evaluated],
    wanted: Sequence[StepCommitted | Evaluated],
    tolerance: float,
) -> list[str]:
    steps, wanted_steps = ([event.step for event in each] for each in (found, wanted))
    if steps != wanted_steps:
        return [f"{name} are of the steps {steps} instead of {wanted_steps}"]
    pairs = zip(found, wanted, strict=True)
    far = [one.step for one, other in pairs if not _is_close(one.loss, other.loss, tolerance)]
    return [f"{name} differ at the steps {far}"] if far else []


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _is_close(one: float, other: float, tolerance: float) -> bool:
    if not math.isfinite(other):
        return str(one) == str(other)
    return abs(one - other) <= tolerance * max(1.0, abs(other))
