"""Baselines' proposals in the eyes of both models: the papers' closed form, and the simulator that prices everybody."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.plans.plan import Plan
from zooid.core.plans.stage import StageTimes
from zooid.planner import Market
from zooid.planner.drafts import draft, evaluate
from zooid.predictor.equations import Pipeline, funcpipe_step_s, pipelined_s
from zooid.predictor.equations.array_checks import Array, above_zero, at_least, where


def simulated(proposals: Iterable[Plan], market: Market) -> list[Plan]:
    """Plans of those whose members have memory enough."""
    drafts = (draft(proposal, market) for proposal in dict.fromkeys(proposals))
    return [evaluate(made) for made in drafts if made.missing_bytes <= 0]


def fits(proposal: Plan, market: Market) -> bool:
    return draft(proposal, market).missing_bytes <= 0


def three_phase_s(
    num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0
) -> Array:
    """LambdaML's scatter-reduce through a store: 3s/w − 2s/(nw) + 4l (FuncPipe (1)).

    >>> float(three_phase_s(280e6, 8, 70e6))
    11.0
    """
    s, w = at_least(0, "num_bytes", num_bytes), above_zero("bytes_per_s", bytes_per_s)
    n, lat = at_least(1, "num_members", num_members), at_least(0, "latency_s", latency_s)
    return where(n > 1, 3 * s / w - 2 * s / (n * w) + 4 * lat)


def pipeline_of(stages: Sequence[StageTimes], bytes_per_s: float) -> Pipeline:
    return Pipeline(
        forward_s=np.array([stage.forward_s for stage in stages]),
        backward_s=np.array([stage.backward_s for stage in stages]),
        out_bytes=np.array([stage.out_bytes for stage in stages]),
        parameter_bytes=np.array([sum(bucket.num_bytes for bucket in stage.buckets) for stage in stages], float),
        bytes_per_s=np.full(len(stages), bytes_per_s),
    )


def closed_form_step_s(proposal: Plan, market: Market) -> float:
    """FuncPipe's (7), through the store, with the all-reduce that the proposal has: LambdaML's or FuncPipe's own."""
    stages = [
        market.world.stage_times(offer, span, proposal.grain_size, crowded=False, is_direct=False)
        for offer, span in zip(proposal.offer_rows[0], proposal.partition, strict=True)
    ]
    there, back = market.links_of(proposal.offers[0], is_direct=False)
    num_grains = math.ceil(market.profile.batch_size / proposal.grain_size)
    step_s = funcpipe_step_s(
        pipeline_of(stages, min(there.bytes_per_s, back.bytes_per_s)),
        math.ceil(num_grains / proposal.num_replicas),
        proposal.num_replicas,
        latency_s=(there.rtt_s + back.rtt_s) / 2,
        all_reduce=three_phase_s if proposal.all_reduce == "three_phase" else pipelined_s,
    )
    return float(step_s)
