"""Better pipelines from good ones: cut one or two neighbouring stages anew, with any sizes, as long as that helps.

A search is the faster the better the pipeline is that it has to beat.
"""

import numpy as np

from zooid.planner.resources.bounds import Aim
from zooid.planner.resources.labels import Labels
from zooid.planner.resources.searching import TOLERANCE, Built
from zooid.planner.resources.stages import Ints, Stages


def improved(stages: Stages, aim: Aim, built: Built) -> Built:
    """No worse than what is given."""
    numbers = np.full((stages.num_layers + 1, stages.num_layers + 1, int(stages.size.max()) + 1), -1)
    numbers[stages.first, stages.end, stages.size] = np.arange(len(stages))
    path = [int(numbers[stage]) for stage in built.stages]
    _, best, value = _completed(stages, aim, path, 0, [], 0)
    at, untried = 0, 2 * len(path)
    while untried > 0:
        width = 1 + at % 2
        place = at // 2 % len(path)
        at, untried = at + 1, untried - 1
        window = path[place : place + width]
        for others in _recut(stages, numbers, int(stages.first[window[-1]]), int(stages.end[window[0]])):
            chosen, found, least = _completed(stages, aim, path, place, others, width)
            if chosen is not None and least < value * (1 - TOLERANCE):
                path = [*path[:place], *chosen, *path[place + width :]]
                best, value = found, least
                untried = 2 * len(path)
                break
    time_s = float(best.time_s(stages.laps)[0])
    return Built(built.degree, time_s, float(best.rate[0]), stages.named(tuple(path)))


def _recut(stages: Stages, numbers: Ints, first: int, end: int) -> list[list[Ints]]:
    """Two stages for these layers in every way, the one behind first; and one stage of every size."""
    alone = numbers[first, end]
    ways = [[alone[alone >= 0]]]
    front, behind = numbers[first, first + 1 : end, :, None], numbers[first + 1 : end, end, None, :]
    fits = (front >= 0) & (behind >= 0)
    if fits.any():
        ways.append([np.broadcast_to(behind, fits.shape)[fits], np.broadcast_to(front, fits.shape)[fits]])
    return ways


def _completed(
    stages: Stages, aim: Aim, path: list[int], place: int, others: list[Ints], width: int
) -> tuple[list[int] | None, Labels, float]:
    """The best of whole pipelines that have, from `place` on, others instead of `width` stages."""
    labels = Labels.empty_pipeline(stages.num_layers)
    for number in path[:place]:
        labels = labels.extended(np.zeros(1, np.int64), stages, np.array([number]), np.zeros(1, np.int64))
    count = len(others[0]) if others else 1
    if not count:
        return None, labels, float("inf")
    rows = np.zeros(count, np.int64)
    for some in others:
        labels = labels.extended(rows, stages, some, rows)
        rows = np.arange(count)
    for number in path[place + width :]:
        labels = labels.extended(rows, stages, np.full(count, number), rows)
        rows = np.arange(count)
    values = aim.value(labels.time_s(stages.laps), labels.rate, stages.num_replicas)
    least = int(values.argmin())
    return [int(some[least]) for some in others], labels[np.array([least])], float(values[least])
