"""Where to cut: for a number of stages, the partitions with the least closed-form step time."""

import functools
import heapq
import math
from itertools import combinations, pairwise

from zooid.core.link import Link
from zooid.core.profile import Profile
from zooid.core.stage import StageTimes
from zooid.predictor import stage_times

Partition = tuple[tuple[int, int], ...]
"""[first, end) of every stage."""

MAX_ENUMERATED = 20_000
"""Up to here all partitions are looked at; beyond, the one with the least bottleneck, found exactly."""


def best_partitions(
    profile: Profile, num_stages: int, grain_size: int, num_grains: int, links: tuple[Link, Link], *, most: int
) -> list[Partition]:
    """The most promising partitions into so many stages, best first; none where there are too few layers."""
    num_layers = len(profile.layers)
    if num_stages > num_layers:
        return []
    if math.comb(num_layers - 1, num_stages - 1) > MAX_ENUMERATED:
        return [_least_bottleneck(profile, num_stages, grain_size, links)]

    times = functools.cache(lambda first, end: stage_times(profile, first, end, grain_size))

    def estimate(partition: Partition) -> float:
        return pipeline_s([times(*stage) for stage in partition], num_grains, links)

    cuts = combinations(range(1, num_layers), num_stages - 1)
    partitions = (tuple(pairwise((0, *cut, num_layers))) for cut in cuts)
    return heapq.nsmallest(most, partitions, key=estimate)


def pipeline_s(stages: list[StageTimes], num_grains: int, links: tuple[Link, Link]) -> float:
    """GPipe's step (Hydrozoa §3.4): one grain through all stages and cuts, then the slowest of them for the others.

    T = Σ (f + b) + Σ 2c + (M − 1) (max(f, c) + max(b, c)), with c the time of one cut's message one way.
    """
    passing = [_message_s(stage.out_bytes, links) for stage in stages[:-1]]
    one_grain = sum(stage.forward_s + stage.backward_s for stage in stages) + 2 * sum(passing)
    slowest_forward = max([stage.forward_s for stage in stages] + passing)
    slowest_backward = max([stage.backward_s for stage in stages] + passing)
    return one_grain + (num_grains - 1) * (slowest_forward + slowest_backward)


def _least_bottleneck(profile: Profile, num_stages: int, grain_size: int, links: tuple[Link, Link]) -> Partition:
    """Dynamic program over (layers placed, stages used): the least possible maximum of stage and message times."""
    num_layers = len(profile.layers)
    best: dict[tuple[int, int], tuple[float, Partition]] = {(0, 0): (0.0, ())}
    for used in range(1, num_stages + 1):
        for end in range(used, num_layers - (num_stages - used) + 1):
            options = []
            for first in range(used - 1, end):
                if (first, used - 1) not in best:
                    continue
                times = stage_times(profile, first, end, grain_size)
                here = max(times.forward_s + times.backward_s, 2 * _message_s(times.out_bytes, links))
                before, partition = best[first, used - 1]
                options.append((max(before, here), (*partition, (first, end))))
            best[end, used] = min(options)
    return best[num_layers, num_stages][1]


def _message_s(num_bytes: float, links: tuple[Link, Link]) -> float:
    """One message through the store: a put and a get."""
    return sum(link.rtt_s + num_bytes / link.bandwidth_bytes_per_s for link in links) if num_bytes else 0.0
