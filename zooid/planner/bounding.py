"""What no cuts of a model can beat: the predictor's lower bound of a step, the least over all partitions at once.

The bound of a partition (`zooid.predictor.step_bounds`) is the largest of what its stages say, each from where it
begins and ends and what lies before it. Times before a stage are sums over layers, wherever those are cut, but for the
cuts' own messages, of which the last is known and the others are no shorter than the shortest. So one dynamic program
over the stages' ends finds the partition in which the largest is least, for every number of stages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zooid.core.plans.profile import Profile
from zooid.planner.cuts.table import sums
from zooid.planner.partition import forwards
from zooid.predictor import Way
from zooid.predictor.equations.array_checks import Array
from zooid.predictor.step_bounds import latency_s, reduced_share


@dataclass(frozen=True, eq=False)
class Ground:
    """What all partitions on one offer with one size of grains share, by [first, end] of a stage, or by end."""

    forward_s: Array
    backward_s: Array
    gradient_bytes: Array
    crossing_bytes: Array
    crossing_s: Array
    """One message over the cut, alone on its way."""
    latency_s: float
    """Of a message, however small."""
    down_bytes_per_s: float

    @classmethod
    def of(
        cls, profile: Profile, grain_size: int, ways: Sequence[Way], down_bytes_per_s: float, *, crowded: bool
    ) -> "Ground":
        """`ways` are the one between members, or those to the store and from it."""
        layers = profile.layers
        message_s = latency_s(ways)
        crossing_bytes = np.array([0.0, *(layer.boundary.at(grain_size) for layer in layers)])
        crossing_bytes[-1] = 0.0
        per_byte_s = sum(1 / way.bytes_per_s for way in ways)
        return cls(
            forward_s=forwards(profile, grain_size, crowded=crowded),
            backward_s=sums([layer.backward_s(grain_size, crowded=crowded) for layer in layers]),
            gradient_bytes=sums(_gradient_bytes(profile)),
            crossing_bytes=crossing_bytes,
            crossing_s=np.where(crossing_bytes > 0, message_s + per_byte_s * crossing_bytes, 0.0),
            latency_s=message_s,
            down_bytes_per_s=down_bytes_per_s,
        )

    def least_steps_s(self, num_grains: int, num_replicas: int, most_stages: int, *, is_reducing: bool) -> Array:
        """By number of stages, from 0 on; infinite where there are not so many layers. `is_reducing`: whether gradients
        are exchanged by lists of ours, and not by a library."""
        num_ends = len(self.crossing_s)
        is_stage = np.triu(np.ones((num_ends, num_ends), bool), 1)
        before_forward_s = (self.forward_s[0] + self.crossing_s)[:, None]
        before_backward_s = (self.backward_s[0] + self.crossing_s)[:, None]
        before_forward_s[0] = before_backward_s[0] = 0.0
        arrives_s = before_forward_s + num_grains * (self.forward_s + self.backward_s)
        ends_s = arrives_s + before_backward_s
        reduced = np.zeros_like(self.gradient_bytes)
        if num_replicas > 1 and is_reducing:
            reduced = reduced_share(num_replicas) * self.gradient_bytes
        reduce_s = np.where(reduced > 0, self.latency_s + reduced / self.down_bytes_per_s, 0.0)
        prepared_s = np.where(reduced > 0, arrives_s - self.backward_s + reduce_s, 0.0)
        taken = num_grains * (self.crossing_bytes[:, None] + self.crossing_bytes) + reduced
        carried_s = taken / self.down_bytes_per_s
        shortest_s = float(self.crossing_s[1:-1].min(initial=math.inf))
        found = np.full((most_stages + 1, num_ends), np.inf)
        least_s = np.full(num_ends, np.inf)
        least_s[0] = 0.0
        for count in range(1, most_stages + 1):
            more_s = (count - 2) * shortest_s if count > 2 else 0.0
            own_s = np.maximum(np.maximum(ends_s + 2 * more_s, prepared_s + more_s), carried_s)
            own_s = np.where(is_stage, np.maximum(own_s, least_s[:, None]), np.inf)
            least_s = own_s.min(axis=0)
            found[count] = least_s
        steps_s = found[:, -1]
        if is_reducing:
            steps_s[2 if num_replicas == 1 else 1 :] += self.latency_s  # the others hear of it
        return steps_s


def _gradient_bytes(profile: Profile) -> list[int]:
    """By layer, with the statistics that are exchanged beside them. A profile by hand may leave gradients out; then
    parameters count, if it is certain where."""
    if any(layer.gradients for layer in profile.layers):
        return [
            sum(gradient.num_bytes for gradient in layer.gradients) + layer.buffer_bytes for layer in profile.layers
        ]
    return [0 if profile.tied else layer.parameter_bytes + layer.buffer_bytes for layer in profile.layers]
