"""Where to cut a model that was measured: for a number of stages, the partitions with the least closed-form step."""

import math
from collections.abc import Collection, Sequence
from itertools import combinations

import numpy as np

from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes
from zooid.planner.cuts import Partition, StageTable, cut_into_each
from zooid.planner.cuts.table import partition_of, sums
from zooid.predictor import Way
from zooid.predictor.equations import streaming_bound_s
from zooid.predictor.equations.array_checks import Array

__all__ = [
    "Partition",
    "best_partitions",
    "forwards",
    "partitions_for_each",
    "pipeline_s",
    "smallest_need",
    "table_of",
]

MAX_ENUMERATED = 5_000
"""Up to here all partitions are looked at, and all that are returned are the best there are; beyond, they are searched:
the first is proven to be the best, the others are the next best that were found on the way."""


def best_partitions(table: StageTable, num_stages: int, *, most: int) -> list[Partition]:
    """The most promising partitions into so many stages, best first; none where nothing fits, or there are too few
    layers. The first has the least step of all that exist."""
    return partitions_for_each(table, [num_stages], most=most)[num_stages]


def partitions_for_each(table: StageTable, stage_counts: Collection[int], *, most: int) -> dict[int, list[Partition]]:
    """The same for several numbers of stages, which takes little more than for one."""
    num_layers = table.num_layers
    few = [count for count in stage_counts if math.comb(num_layers - 1, count - 1) <= MAX_ENUMERATED]
    cuts = cut_into_each(table, set(stage_counts) - set(few), most=most) if len(few) < len(stage_counts) else {}
    searched = {count: [cut.partition, *cut.others] for count, cut in cuts.items()}
    tried = {count: _enumerated(table, count, most) for count in few}
    return {count: [] for count in stage_counts} | searched | tried


def _enumerated(table: StageTable, num_stages: int, most: int) -> list[Partition]:
    num_layers = table.num_layers
    if num_stages > num_layers:
        return []
    ends = np.array([(*cuts, num_layers) for cuts in combinations(range(1, num_layers), num_stages - 1)])
    steps_s = table.step_s(ends)
    order = np.argsort(steps_s, kind="stable")[:most]
    return [partition_of(ends[at]) for at in order if np.isfinite(steps_s[at])]


def smallest_need(needed: Array, num_stages: int) -> Partition:
    """The partition whose largest stage needs the least; `needed` is by [first, end]."""
    num_layers = len(needed) - 1
    is_stage = np.triu(np.ones(needed.shape, bool), 1)
    own = np.where(is_stage, needed, np.inf)
    least = own[0]
    """By end: of the stages so far."""
    begins = []
    for _ in range(num_stages - 1):
        both = np.maximum(least[:, None], own)
        begins.append(both.argmin(axis=0))
        least = both.min(axis=0)
    ends = [num_layers]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return partition_of(np.array(ends[::-1]))


def pipeline_s(stages: list[StageTimes], num_grains: int, ways: Sequence[Way]) -> float:
    """GPipe's step (Hydrozoa §3.4): one grain through all stages and cuts, then the slowest of them for the others.

    T = Σ (f + b) + Σ 2c + (M − 1) (max(f, c) + max(b, c)), with c the time of one cut's message one way.
    """
    passing = [_message_s(stage.out_bytes, ways) for stage in stages[:-1]]
    one_grain = sum(stage.forward_s + stage.backward_s for stage in stages) + 2 * sum(passing)
    slowest_forward = max([stage.forward_s for stage in stages] + passing)
    slowest_backward = max([stage.backward_s for stage in stages] + passing)
    return one_grain + (num_grains - 1) * (slowest_forward + slowest_backward)


def table_of(
    profile: Profile, grain_size: int, num_grains: int, ways: Sequence[Way], num_replicas: int = 1
) -> StageTable:
    """All stages of a profile; replicas reduce their gradients as fast as any all-reduce can."""
    layers = profile.layers
    forward_s = forwards(profile, grain_size)
    rate = min((way.bytes_per_s for way in ways), default=math.inf)
    reduced_s = np.zeros_like(forward_s)
    if num_replicas > 1:
        reduced_s += streaming_bound_s(sums([layer.parameter_bytes for layer in layers]), num_replicas, rate)
    return StageTable(
        forward_s=forward_s,
        backward_s=sums([layer.backward_s(grain_size) for layer in layers]),
        cut_s=np.array([0.0, *(_message_s(layer.boundary.at(grain_size), ways) for layer in layers)]),
        num_grains=num_grains,
        reduce_s=reduced_s,
        fits=np.ones(forward_s.shape, bool),
    )


def forwards(profile: Profile, grain_size: int, *, crowded: bool = False) -> Array:
    """[first, end]: the forward of every stage; first and last ones read the samples, as `stage_times` has it."""
    forward_s = sums([layer.forward_s(grain_size, crowded=crowded) for layer in profile.layers])
    reading_s = profile.load_s_per_sample * grain_size
    forward_s[0, 1:] += reading_s
    forward_s[1:-1, -1] += reading_s
    return forward_s


def _message_s(num_bytes: float, ways: Sequence[Way]) -> float:
    """One message over what lies between two stages: to the store and from it, or straight."""
    return sum(way.rtt_s + num_bytes / way.bytes_per_s for way in ways) if num_bytes else 0.0
