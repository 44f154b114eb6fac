"""A lower bound of a family's step that is quick to compute: it holds however the model is cut."""

import math

from zooid.core.plans.plan import Plan
from zooid.planner.market import Market
from zooid.predictor import host_cores
from zooid.predictor.step_bounds import downlink, latency_s, reduced_fraction


def least_step_s(plan: Plan, market: Market, crossing_bytes: float) -> float:
    """Lower bound of the step of a plan, whatever its cuts, from sums over all layers.

    `crossing_bytes` is the smallest message that crosses any cut. A pipeline takes at least `_least_pipeline_s`. A
    middle stage receives the messages of two cuts. Some stage has at least a k-th of the gradients to reduce. Finally,
    members vote.
    """
    offer, world, num_stages = plan.offer_of(0), market.world, len(plan.stages)
    links = market.links_of(offer, is_direct=plan.is_direct)
    step_grains = math.ceil(plan.batch_size / plan.grain_size)
    num_grains = math.ceil(step_grains / plan.num_replicas)  # of the busiest replica
    cores = host_cores(plan, world)
    crowded = cores is not None and plan.num_members > 1
    layers = (0, len(market.profile.layers))
    whole = world.stage_times(offer, layers, plan.grain_size, crowded=crowded, is_direct=plan.is_direct)
    grain_s = whole.forward_s + whole.backward_s
    message_s = latency_s(links)
    step_s = num_grains * grain_s
    down_bytes_per_s = downlink(world.links, offer.site)
    if num_stages > 1:
        crossing_s = message_s + sum(crossing_bytes / link.bytes_per_s for link in links)
        step_s = _least_pipeline_s(grain_s, crossing_s * (crossing_bytes > 0), num_grains, num_stages)
        step_s = max(step_s, num_grains * crossing_bytes * (1 if num_stages == 2 else 2) / down_bytes_per_s)
    if cores is not None:
        step_s = max(step_s, step_grains * grain_s / cores)
    reduced_bytes = sum(bucket.num_bytes for bucket in whole.buckets)
    if plan.num_replicas > 1 and reduced_bytes and world.library is None:
        reduce_s = message_s + reduced_fraction(plan.num_replicas) * reduced_bytes / num_stages / down_bytes_per_s
        begin_s = num_grains * grain_s - whole.backward_s if num_stages == 1 else 0.0
        step_s = max(step_s, begin_s + reduce_s)
    if plan.num_members > 1 and world.library is None:
        step_s += message_s  # of the vote
    return step_s


def _least_pipeline_s(grain_s: float, crossing_s: float, num_grains: int, num_stages: int) -> float:
    """Lower bound of a pipeline whose stages together take `grain_s` for a grain, and each cut `crossing_s` each way.

    Stage s computes M grains, after the first has passed the stages before it, and before the last returns through
    them. So the step takes at least V = Σ_{i<s} (t_i + 2c) + M t_s. The largest V is smallest where all are equal:
    t_s = (V − Σ …) / M is linear in V, and Σ t = T gives V. Without cuts V = T / (1 − (1 − 1/M)^k).
    """
    slope = offset = 0.0  # the sum so far is slope · V − offset
    for stage in range(num_stages):
        slope, offset = (
            slope + (1 - slope) / num_grains,
            offset + (2 * crossing_s * stage - offset) / num_grains,
        )
    return (grain_s + offset) / slope
