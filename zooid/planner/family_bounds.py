"""Lower bounds of the step of all plans of a family, however the model is cut.

`least_step_s` is quick: it needs only sums over all layers. `StepFloor` is sharper: it looks at all partitions at once.

The predictor's lower bound of one partition (`zooid.predictor.step_bounds`) is the largest of its stages' terms. A term
depends on where its stage begins and ends, and on the time before the stage. That time is a sum over layers plus the
messages over the cuts: the last cut is known, the others take at least as long as the shortest. So one dynamic program
over the stages' ends finds the partition whose largest term is least, for every number of stages.
"""

import math
from collections.abc import Sequence

import numpy as np

from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.planner.market import Market
from zooid.planner.partition.problem import span_sums, stage_forward_s
from zooid.predictor import DirectedLink, host_cores
from zooid.predictor.equations.array_checks import Array
from zooid.predictor.step_bounds import latency_s, message_s, reduced_fraction


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
    hop_s = latency_s(links)
    step_s = num_grains * grain_s
    down_bytes_per_s = market.downlink(offer)
    if num_stages > 1:
        step_s = _least_pipeline_s(grain_s, message_s(crossing_bytes, links), num_grains, num_stages)
        step_s = max(step_s, num_grains * crossing_bytes * (1 if num_stages == 2 else 2) / down_bytes_per_s)
    if cores is not None:
        step_s = max(step_s, step_grains * grain_s / cores)
    reduced_bytes = sum(bucket.num_bytes for bucket in whole.buckets)
    if plan.num_replicas > 1 and reduced_bytes and world.library is None:
        reduce_s = hop_s + reduced_fraction(plan.num_replicas) * reduced_bytes / num_stages / down_bytes_per_s
        begin_s = num_grains * grain_s - whole.backward_s if num_stages == 1 else 0.0
        step_s = max(step_s, begin_s + reduce_s)
    if plan.num_members > 1 and world.library is None:
        step_s += hop_s  # of the vote
    return step_s


class StepFloor:
    """Costs of all stages and cuts on one offer with one grain size, by [first, end] of a stage or by cut."""

    def __init__(
        self,
        profile: Profile,
        grain_size: int,
        links: Sequence[DirectedLink],
        down_bytes_per_s: float,
        *,
        crowded: bool,
    ) -> None:
        """`links` are the link between two members, or the links to the store and from it."""
        layers = profile.layers
        self.forward_s = stage_forward_s(profile, grain_size, crowded=crowded)
        self.backward_s = span_sums([layer.backward_s(grain_size, crowded=crowded) for layer in layers])
        self.gradient_bytes = span_sums(_gradient_bytes(profile))
        self.crossing_bytes = np.array([0.0, *(layer.boundary.at(grain_size) for layer in layers)])
        self.crossing_bytes[-1] = 0.0
        self.latency_s = latency_s(links)
        self.crossing_s = np.array([message_s(num_bytes, links) for num_bytes in self.crossing_bytes])
        self.down_bytes_per_s = down_bytes_per_s

    def min_steps_s(self, num_grains: int, num_replicas: int, max_stages: int, *, is_reducing: bool) -> Array:
        """Lower bound of a step by number of stages, from 0 on; infinite where there are too few layers.

        `is_reducing` says whether zooid's own collectives exchange the gradients, and not a library.
        """
        num_ends = len(self.crossing_s)
        is_stage = np.triu(np.ones((num_ends, num_ends), bool), 1)
        before_forward_s = (self.forward_s[0] + self.crossing_s)[:, None]
        before_backward_s = (self.backward_s[0] + self.crossing_s)[:, None]
        before_forward_s[0] = before_backward_s[0] = 0.0
        computed_s = before_forward_s + num_grains * (self.forward_s + self.backward_s)
        returned_s = computed_s + before_backward_s
        reduced_bytes = np.zeros_like(self.gradient_bytes)
        if num_replicas > 1 and is_reducing:
            reduced_bytes = reduced_fraction(num_replicas) * self.gradient_bytes
        reduce_s = np.where(reduced_bytes > 0, self.latency_s + reduced_bytes / self.down_bytes_per_s, 0.0)
        prepared_s = np.where(reduced_bytes > 0, computed_s - self.backward_s + reduce_s, 0.0)
        received_bytes = num_grains * (self.crossing_bytes[:, None] + self.crossing_bytes) + reduced_bytes
        received_s = received_bytes / self.down_bytes_per_s
        shortest_crossing_s = float(self.crossing_s[1:-1].min(initial=math.inf))
        steps_s = np.full(max_stages + 1, np.inf)
        prefix_s = np.full(num_ends, np.inf)  # by end: the largest term of the stages so far
        prefix_s[0] = 0.0
        for count in range(1, max_stages + 1):
            crossings_s = (count - 2) * shortest_crossing_s if count > 2 else 0.0
            stage_s = np.maximum(np.maximum(returned_s + 2 * crossings_s, prepared_s + crossings_s), received_s)
            prefix_s = np.where(is_stage, np.maximum(stage_s, prefix_s[:, None]), np.inf).min(axis=0)
            steps_s[count] = prefix_s[-1]
        if is_reducing:
            steps_s[2 if num_replicas == 1 else 1 :] += self.latency_s  # every member waits for the others' votes
        return steps_s


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


def _gradient_bytes(profile: Profile) -> list[int]:
    """Bytes that each layer exchanges: its gradients and its running statistics.

    A hand-written profile may leave gradients out. Then parameters count, unless ties make their location uncertain.
    """
    if any(layer.gradients for layer in profile.layers):
        return [
            sum(gradient.num_bytes for gradient in layer.gradients) + layer.buffer_bytes for layer in profile.layers
        ]
    return [0 if profile.tied else layer.parameter_bytes + layer.buffer_bytes for layer in profile.layers]
