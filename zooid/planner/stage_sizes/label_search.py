"""The exact label-setting search of one degree, apart from `search`, which runs it for all degrees and aims.

Labels are partial pipelines. With the same stages in front of labels i and j of the same layers, i takes longer by

    e ≤ max(ended_i − ended_j, both_i − both_j + (μ − 1)(∆b_i − ∆b_j)⁺) + (μ − 1)(∆f_i − ∆f_j)⁺

and its rate is higher by r_i − r_j. So i dominates j where e ≤ 0 and r_i ≤ r_j. Where only values below z count, a gain
in one may make up for the other. With C = α₁ · rate + α₂ and time T of the completed j, and c = α₁(r_i − r_j):

    dearer but faster:   (T + e)(C + c) ≤ TC  ⇐  −e ≥ z c / (C (C + c)),      since T < z/C; worst at the least C
    cheaper but slower:  (T + e)(C + c) ≤ TC  ⇐   e ≤ T |c| / (z/T − |c|),    since C < z/T; worst at the least T

The second rule could exceed a time limit, so that it is not used under one.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from zooid.planner.front import Ints, Mask
from zooid.planner.stage_sizes.answer import BuiltPipeline, SearchOutcome
from zooid.planner.stage_sizes.arrays import PartialPipelines, SizedStages
from zooid.planner.stage_sizes.bounds import NO_PEAK, PEAK, PipelineBounds
from zooid.planner.stage_sizes.problem import Aim
from zooid.predictor.equations.array_checks import Array

TOLERANCE = 1e-10
"""A value that is better by a smaller fraction counts as the same."""
MAX_AT_ONCE = 300_000
"""Labels that are made at once, which limits the memory."""
DOMINANCE_BLOCK = 128


def search_degree(
    bounds: PipelineBounds, degree: int, aim: Aim, value: float, *, gap: float = 0.0, deadline: float = math.inf
) -> SearchOutcome:
    """Search everything that may be better than `value` by more than the fraction `gap` of it.

    When `time.perf_counter` passes `deadline`, the open labels give the lower bound.
    """
    stages = bounds.stages
    open_labels: list[list[tuple[PartialPipelines, Array]]] = [[] for _ in range(stages.num_layers + 1)]
    open_labels[-1].append((PartialPipelines.empty(stages.num_layers), np.zeros(1)))
    history: list[tuple[Ints, Ints]] = []
    num_labels = 0
    best: BuiltPipeline | None = None

    def below() -> float:
        return value * (1 - gap) * (1 - TOLERANCE)

    for end in range(stages.num_layers, 0, -1):
        if not open_labels[end]:
            continue
        if time.perf_counter() > deadline:
            lower = np.concatenate([lower for waiting in open_labels[1 : end + 1] for _, lower in waiting])
            lower_bound = min(value * (1 - gap), float(lower.min(initial=np.inf)))
            return SearchOutcome(best, value, lower_bound, is_proven=False)
        labels = PartialPipelines.joined([waiting for waiting, _ in open_labels[end]])
        lower = np.concatenate([lower for _, lower in open_labels[end]])
        open_labels[end] = []
        rows = np.flatnonzero(lower < below())
        labels = labels[rows[np.argsort(lower[rows], kind="stable")]]
        if len(labels) > 1:
            labels = _undominated(labels, bounds, end, aim, below())
        numbers = num_labels + np.arange(len(labels))
        num_labels += len(labels)
        history.append((labels.parent, labels.stage))
        for extended in _extensions(labels, bounds, end, numbers):
            is_complete = extended.first == 0
            complete = extended[np.flatnonzero(is_complete)]
            if len(complete):
                times_s = complete.time_s(stages.later_grains)
                values = aim.value(times_s, complete.usd_per_s, stages.num_replicas)
                row = int(values.argmin())
                if values[row] < value * (1 - TOLERANCE):
                    value = float(values[row])
                    spans = stages.spans(_path(history, int(complete.parent[row]), int(complete.stage[row])))
                    best = BuiltPipeline(degree, float(times_s[row]), float(complete.usd_per_s[row]), spans)
            lower = np.where(is_complete, np.inf, bounds.of(extended, aim, below()))
            rows = np.flatnonzero(lower < below())
            rows = rows[np.argsort(extended.first[rows], kind="stable")]
            changes = np.flatnonzero(np.diff(extended.first[rows])) + 1
            for part in np.split(rows, changes) if len(rows) else []:
                open_labels[int(extended.first[part[0]])].append((extended[part], lower[part]))
    return SearchOutcome(best, value, value * (1 - gap), is_proven=True)


def _undominated(
    labels: PartialPipelines, bounds: PipelineBounds, end: int, aim: Aim, below: float
) -> PartialPipelines:
    """The labels of one first layer that no earlier one dominates, where only values below `below` count."""
    stages, part = bounds.stages, bounds.stages.ending_at(end)
    later_grains = stages.later_grains
    # the next stage ends no sooner than this, so that an earlier end behind it brings nothing
    next_end_s = (stages.backward_sum_s[part] + stages.sync_s[part]).min()
    soonest_s = labels.both_s + later_grains * labels.longest_backward_s + next_end_s
    ended_s = np.maximum(labels.ended_s, soonest_s)
    fastest_s = bounds.fastest_s(labels)
    price = aim.usd * stages.num_replicas
    weight = price * (labels.usd_per_s + float(bounds.min_usd_per_s[end])) + aim.s

    def dominates(by: Ints, of: Ints) -> Mask:
        def excess(values: Array) -> Array:
            difference: Array = values[by][:, None] - values[of]
            return difference

        later_s = excess(labels.both_s) + later_grains * np.maximum(excess(labels.longest_backward_s), 0.0)
        forward_s = later_grains * np.maximum(excess(labels.longest_forward_s), 0.0)
        excess_s = np.maximum(excess(ended_s), later_s) + forward_s
        dearer = price * excess(labels.usd_per_s)
        product = weight[of] * (weight[of] + np.maximum(dearer, 0.0))
        allowed_s = -below * np.maximum(dearer, 0.0) / np.maximum(product, 1e-300)
        if not math.isfinite(aim.max_time_s):
            cheaper = np.maximum(-dearer, 0.0)
            divisor = np.maximum(below / np.maximum(fastest_s[of], 1e-300) - cheaper, 1e-300)
            allowed_s = np.where(dearer > 0, allowed_s, fastest_s[of] * cheaper / divisor)
        is_dominated: Mask = excess_s <= allowed_s
        return is_dominated

    kept: Ints = np.zeros(0, np.int64)
    for start in range(0, len(labels), DOMINANCE_BLOCK):
        block = np.arange(start, min(len(labels), start + DOMINANCE_BLOCK))
        if len(kept):
            block = block[~dominates(kept, block).any(axis=0)]
        # an earlier label that is itself dominated still counts: what dominates it also dominates this one
        block = block[~np.triu(dominates(block, block), 1).any(axis=0)]
        kept = np.concatenate([kept, block])
    return labels[kept]


def _extensions(
    labels: PartialPipelines, bounds: PipelineBounds, end: int, numbers: Ints
) -> Iterator[PartialPipelines]:
    """The labels with every stage that ends at `end` in front, unless the pipeline gets too high to matter."""
    stages, part = bounds.stages, bounds.stages.ending_at(end)
    is_open = (stages.height_s[part] <= bounds.high_s[-1]) & np.isfinite(bounds.min_usd_per_s[stages.first[part]])
    chosen = np.arange(part.start, part.stop)[is_open]
    if not len(chosen) or not len(labels):
        return
    rows = np.arange(len(labels))
    step = max(1, MAX_AT_ONCE // len(chosen))
    for some in (rows[start : start + step] for start in range(0, len(rows), step)):
        yield labels.extended(np.repeat(some, len(chosen)), stages, np.tile(chosen, len(some)), numbers)


def _path(history: list[tuple[Ints, Ints]], parent: int, stage: int) -> tuple[int, ...]:
    """Indices of a pipeline's stages from the last to the first."""
    parents = np.concatenate([parents for parents, _ in history])
    stages = np.concatenate([stages for _, stages in history])
    path = [stage]
    while parents[parent] >= 0:
        path.append(int(stages[parent]))
        parent = int(parents[parent])
    return tuple(reversed(path))


def shortest_paths(bounds: PipelineBounds, degree: int, is_wanted: Mask) -> list[BuiltPipeline]:
    """The pipelines of the bounds' own shortest paths, for these [cell, price]: good first incumbents."""
    stages = bounds.stages
    cell, price = np.nonzero(is_wanted)
    rows = np.arange(len(cell))
    labels = PartialPipelines.empty(stages.num_layers)[np.zeros(len(cell), np.int64)]
    kind = np.full(len(cell), NO_PEAK)
    steps: list[Ints] = []
    built: dict[tuple[int, ...], BuiltPipeline] = {}
    while len(rows):
        step = bounds.choice[labels.first, kind, cell[rows], price[rows]]
        kind = np.where(stages.height_s[step] >= bounds.low_s[cell[rows]], PEAK, kind)
        labels = labels.extended(np.arange(len(rows)), stages, step, rows)
        steps.append(np.full(len(cell), -1))
        steps[-1][rows] = step
        times_s = labels.time_s(stages.later_grains)
        for row in np.flatnonzero(labels.first == 0):
            path = tuple(int(taken[rows[row]]) for taken in steps)
            built[path] = BuiltPipeline(degree, float(times_s[row]), float(labels.usd_per_s[row]), stages.spans(path))
        going_on = np.flatnonzero(labels.first > 0)
        labels, rows, kind = labels[going_on], rows[going_on], kind[going_on]
    return list(built.values())


def improved(stages: SizedStages, aim: Aim, built: BuiltPipeline) -> BuiltPipeline:
    """Cut one or two neighbouring stages anew, of any sizes, as long as that helps: a better incumbent prunes more."""
    indices = np.full((stages.num_layers + 1, stages.num_layers + 1, int(stages.size.max()) + 1), -1)
    indices[stages.first, stages.end, stages.size] = np.arange(len(stages))
    path = [int(indices[stage]) for stage in built.stages]
    _, best, value = _best_replacement(stages, aim, path, 0, [], 0)
    turn, untried = 0, 2 * len(path)
    while untried > 0:
        width, position = 1 + turn % 2, turn // 2 % len(path)
        turn, untried = turn + 1, untried - 1
        window = path[position : position + width]
        for replacements in _recuts(indices, int(stages.first[window[-1]]), int(stages.end[window[0]])):
            chosen, candidate, candidate_value = _best_replacement(stages, aim, path, position, replacements, width)
            if candidate_value < value * (1 - TOLERANCE):
                path = [*path[:position], *chosen, *path[position + width :]]
                best, value = candidate, candidate_value
                untried = 2 * len(path)
                break
    time_s = float(best.time_s(stages.later_grains)[0])
    return replace(built, time_s=time_s, usd_per_s=float(best.usd_per_s[0]), stages=stages.spans(tuple(path)))


def _recuts(indices: Ints, first: int, end: int) -> Iterator[list[Ints]]:
    """These layers as one stage of every size, and as every pair of stages, the one behind first."""
    alone = indices[first, end]
    yield [alone[alone >= 0]]
    front, behind = indices[first, first + 1 : end, :, None], indices[first + 1 : end, end, None, :]
    fits = (front >= 0) & (behind >= 0)
    if fits.any():
        yield [np.broadcast_to(behind, fits.shape)[fits], np.broadcast_to(front, fits.shape)[fits]]


def _best_replacement(
    stages: SizedStages, aim: Aim, path: list[int], position: int, replacements: list[Ints], width: int
) -> tuple[list[int], PartialPipelines, float]:
    """The best pipeline in which one row of `replacements` replaces `width` stages from `position` on."""
    count = len(replacements[0]) if replacements else 1
    labels = PartialPipelines.empty(stages.num_layers)
    if not count:
        return [], labels, math.inf
    rows = np.zeros(1, np.int64)
    for index in path[:position]:
        labels = labels.extended(rows, stages, np.array([index]), rows)
    rows = np.zeros(count, np.int64)
    for chosen in (*replacements, *(np.full(count, index) for index in path[position + width :])):
        labels = labels.extended(rows, stages, chosen, rows)
        rows = np.arange(count)
    values = aim.value(labels.time_s(stages.later_grains), labels.usd_per_s, stages.num_replicas)
    row = int(values.argmin())
    return [int(chosen[row]) for chosen in replacements], labels[np.array([row])], float(values[row])
