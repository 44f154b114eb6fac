"""Hydrozoa's closed form as plain as the paper has it, and its chains of layers as tables of stages."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.plans.stage import StageTimes
from zooid.planner.partition import StageTable
from zooid.planner.partition.problem import _message_s, span_sums
from zooid.predictor import Way
from zooid.predictor.equations import LinkFit, ring_s


def table_of_layers(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    out_bytes: ArrayLike,
    parameter_bytes: ArrayLike,
    bytes_per_s: float,
    num_grains: int,
    *,
    num_replicas: int = 1,
    link: LinkFit | None = None,
    fits: ArrayLike | None = None,
) -> StageTable:
    """Stages as sums over their layers, and members that are all alike: Hydrozoa's case (§3.3, §3.4).

    The arguments are those of `Pipeline` and `hydrozoa_step_s`, by layer instead of by stage; `fits` says of every
    [first, end] whether a member can hold it, and all can where it is not given.
    """
    forward, sizes = span_sums(forward_s), span_sums(parameter_bytes)
    ring = link or LinkFit()
    return StageTable(
        forward_s=forward,
        backward_s=span_sums(backward_s),
        cut_s=np.append(0.0, np.asarray(out_bytes, np.float64)) / bytes_per_s,
        num_grains=num_grains,
        reduce_s=ring_s(sizes, num_replicas, bytes_per_s, ring.s_per_message, ring.s_per_byte),
        fits=np.ones(forward.shape, bool) if fits is None else np.asarray(fits, bool),
    )


def pipeline_s(stages: list[StageTimes], num_grains: int, ways: Sequence[Way]) -> float:
    """GPipe's step (Hydrozoa §3.4): one grain through all stages and cuts, then the slowest of them for the others.

    T = Σ (f + b) + Σ 2c + (M − 1) (max(f, c) + max(b, c)), with c the time of one cut's message one way.
    """
    passing = [_message_s(stage.out_bytes, ways) for stage in stages[:-1]]
    one_grain = sum(stage.forward_s + stage.backward_s for stage in stages) + 2 * sum(passing)
    slowest_forward = max([stage.forward_s for stage in stages] + passing)
    slowest_backward = max([stage.backward_s for stage in stages] + passing)
    return one_grain + (num_grains - 1) * (slowest_forward + slowest_backward)
