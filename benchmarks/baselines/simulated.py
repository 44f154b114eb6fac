"""Baselines' proposals in the eyes of both models: the papers' closed form, and the simulator that prices everybody."""

import math
from collections.abc import Iterable

from zooid.core.plans.plan import Plan
from zooid.planner import Market
from zooid.planner.drafts import draft, evaluate
from zooid.predictor.equations import Pipeline, funcpipe_step_s, pipelined_s, three_phase_s


def simulated(proposals: Iterable[Plan], market: Market) -> list[Plan]:
    """Plans of those whose members have memory enough."""
    drafts = (draft(proposal, market) for proposal in dict.fromkeys(proposals))
    return [evaluate(made, market) for made in drafts if made.missing_bytes <= 0]


def fits(proposal: Plan, market: Market) -> bool:
    return draft(proposal, market).missing_bytes <= 0


def closed_form_step_s(proposal: Plan, market: Market) -> float:
    """FuncPipe's (7), through the store, with the all-reduce that the proposal has: LambdaML's or FuncPipe's own."""
    stages = [
        market.world.stage_times(offer, span, proposal.grain_size, crowded=False, is_direct=False)
        for offer, span in zip(proposal.offer_rows[0], proposal.partition, strict=True)
    ]
    there, back = market.ways_of(proposal.offers[0], is_direct=False)
    num_grains = math.ceil(market.profile.batch_size / proposal.grain_size)
    step_s = funcpipe_step_s(
        Pipeline.of(stages, min(there.bytes_per_s, back.bytes_per_s)),
        math.ceil(num_grains / proposal.num_replicas),
        proposal.num_replicas,
        latency_s=(there.rtt_s + back.rtt_s) / 2,
        all_reduce=three_phase_s if proposal.all_reduce == "three_phase" else pipelined_s,
    )
    return float(step_s)
