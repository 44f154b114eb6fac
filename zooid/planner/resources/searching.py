"""The exact search of one degree: half-built pipelines, place by place, with bounds and dominance."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zooid.planner.resources.bounds import NO_PEAK, PEAK, Aim, Bounds
from zooid.planner.resources.dominance import undominated
from zooid.planner.resources.labels import Labels
from zooid.planner.resources.stages import Ints
from zooid.predictor.equations.array_checks import Array

TOLERANCE = 1e-10
"""A value that is better by a smaller share counts as the same."""
MOST_AT_ONCE = 300_000
"""Labels that are made in one go, so that memory stays small."""


@dataclass(frozen=True)
class Built:
    """A whole pipeline: first layer, end and size of every stage, the last stage first."""

    degree: int
    time_s: float
    rate: float
    stages: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Outcome:
    """The best that was found below what was known, and what nothing is below."""

    best: Built | None
    value: float
    lower: float
    is_complete: bool


def search(
    bounds: Bounds,
    degree: int,
    aim: Aim,
    value: float,
    *,
    share: float = 0.0,
    deadline: float = float("inf"),
) -> Outcome:
    """Everything that may be better than `value` by more than `share` of it.

    Past the `deadline`, of `time.perf_counter`, what is open gives the lower bound.
    """
    stages = bounds.stages
    waiting: list[list[tuple[Labels, Array]]] = [[] for _ in range(stages.num_layers + 1)]
    waiting[-1].append((Labels.empty_pipeline(stages.num_layers), np.zeros(1)))
    history: list[tuple[Ints, Ints]] = []
    num_seen = 0
    best: Built | None = None

    def below() -> float:
        return value * (1 - share) * (1 - TOLERANCE)

    for end in range(stages.num_layers, 0, -1):
        if not waiting[end]:
            continue
        if time.perf_counter() > deadline:
            opened = np.concatenate([lower for place in waiting[1 : end + 1] for _, lower in place])
            floor = float(opened.min(initial=np.inf))
            return Outcome(best, value, min(value * (1 - share), floor), is_complete=False)
        labels = Labels.joined([part for part, _ in waiting[end]])
        lower = np.concatenate([values for _, values in waiting[end]])
        waiting[end] = []
        chosen = np.flatnonzero(lower < below())
        labels = labels[chosen[np.argsort(lower[chosen], kind="stable")]]
        if len(labels) > 1:
            labels = _thinned(labels, bounds, end, aim, below())
        numbers = num_seen + np.arange(len(labels))
        num_seen += len(labels)
        history.append((labels.parent, labels.stage))
        for longer in _extensions(labels, bounds, end, numbers):
            is_whole = longer.first == 0
            whole = longer[np.flatnonzero(is_whole)]
            if len(whole):
                times_s = whole.time_s(stages.laps)
                values = aim.value(times_s, whole.rate, stages.num_replicas)
                least = int(values.argmin())
                if values[least] < value * (1 - TOLERANCE):
                    value = float(values[least])
                    path = _path(history, int(whole.parent[least]), int(whole.stage[least]))
                    best = Built(degree, float(times_s[least]), float(whole.rate[least]), stages.named(path))
            lower = np.where(is_whole, np.inf, bounds.of(longer, aim, below()))
            chosen = np.flatnonzero(lower < below())
            chosen = chosen[np.argsort(longer.first[chosen], kind="stable")]
            changes = np.flatnonzero(np.diff(longer.first[chosen])) + 1
            for part in np.split(chosen, changes) if len(chosen) else []:
                waiting[int(longer.first[part[0]])].append((longer[part], lower[part]))
    return Outcome(best, value, value * (1 - share), is_complete=True)


def _thinned(labels: Labels, bounds: Bounds, end: int, aim: Aim, below: float) -> Labels:
    stages, part = bounds.stages, bounds.stages.ending_at(end)
    # whatever comes next ends no sooner than this, so an earlier end of what is behind it brings nothing
    soonest = labels.both_s + stages.laps * labels.back_s + (stages.back_s[part] + stages.sync_s[part]).min()
    levelled = Labels(
        labels.first,
        labels.both_s,
        np.maximum(labels.ended_s, soonest),
        labels.ahead_s,
        labels.back_s,
        labels.rate,
        labels.height_s,
        labels.parent,
        labels.stage,
    )
    least_rate = float(bounds.least_rate_at[end])
    fastest_s = bounds.fastest_s(labels)
    return labels[undominated(levelled, stages.laps, stages.num_replicas, aim, below, least_rate, fastest_s)]


def _extensions(labels: Labels, bounds: Bounds, end: int, numbers: Ints) -> Iterator[Labels]:
    """With every stage that ends here, except where the pipeline gets higher than any that matters."""
    stages, part = bounds.stages, bounds.stages.ending_at(end)
    is_open = (stages.height_s[part] <= bounds.high_s[-1]) & np.isfinite(bounds.least_rate_at[stages.first[part]])
    chosen = np.arange(part.start, part.stop)[is_open]
    if not len(chosen) or not len(labels):
        return
    rows = np.arange(len(labels))
    step = max(1, MOST_AT_ONCE // len(chosen))
    for some in (rows[at : at + step] for at in range(0, len(rows), step)):
        yield labels.extended(np.repeat(some, len(chosen)), stages, np.tile(chosen, len(some)), numbers)


def _path(history: list[tuple[Ints, Ints]], parent: int, stage: int) -> tuple[int, ...]:
    """Stages by number from the last to the first."""
    parents = np.concatenate([each for each, _ in history])
    chosen = np.concatenate([each for _, each in history])
    path = [stage]
    while parents[parent] >= 0:
        path.append(int(chosen[parent]))
        parent = int(parents[parent])
    return tuple(reversed(path))


def walked(bounds: Bounds, degree: int, wanted: Ints) -> list[Built]:
    """The pipelines of the shortest paths themselves, for these numbers of (cell, price): good ones to begin with."""
    stages = bounds.stages
    cell, price = np.divmod(wanted, len(bounds.prices))
    rows = np.arange(len(wanted))
    labels = Labels.empty_pipeline(stages.num_layers)[np.zeros(len(wanted), np.int64)]
    kind = np.full(len(wanted), NO_PEAK)
    taken: list[Ints] = []
    found: dict[tuple[int, ...], Built] = {}
    while len(rows):
        step = bounds.choice[labels.first, kind, cell[rows], price[rows]]
        kind = np.where(stages.height_s[step] >= bounds.low_s[cell[rows]], PEAK, kind)
        labels = labels.extended(np.arange(len(rows)), stages, step, rows)
        taken.append(np.full(len(wanted), -1))
        taken[-1][rows] = step
        times_s = labels.time_s(stages.laps)
        for at in np.flatnonzero(labels.first == 0):
            path = tuple(int(each[rows[at]]) for each in taken)
            found[path] = Built(degree, float(times_s[at]), float(labels.rate[at]), stages.named(path))
        going = np.flatnonzero(labels.first > 0)
        labels, rows, kind = labels[going], rows[going], kind[going]
    return list(found.values())
