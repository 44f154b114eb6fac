"""The partition problem: the cost of every stage that can be cut out of a chain of layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.core.errors import InputError
from zooid.core.plans.profile import Profile
from zooid.predictor import DirectedLink
from zooid.predictor.equations import streaming_bound_s
from zooid.predictor.equations.array_checks import Array, at_least
from zooid.predictor.step_bounds import message_s

Partition = tuple[tuple[int, int], ...]
"""The layers [first, end) of every stage."""


@dataclass(frozen=True, eq=False)
class StageTable:
    """Arrays of (L + 1) × (L + 1) for L layers; entry [first, end] belongs to the stage of layers [first, end).

    A stage need not cost the sum of its layers: a first stage may also read samples, and tied parameters may count
    once. Entries whose `first` is not below `end` are ignored.
    """

    forward_s: Array
    """Forward time of one grain."""
    backward_s: Array
    """Backward time of one grain."""
    cut_s: Array
    """Time of one message in one direction over the cut at `end`: L + 1 numbers, the first and the last ignored."""
    num_grains: int
    """Number of grains that pass through a replica in a step."""
    reduce_s: Array
    """Time of the all-reduce between replicas after a stage's last backward; zeros for a single replica."""
    fits: NDArray[np.bool_]
    """Whether a member can hold the stage."""

    def __post_init__(self) -> None:
        if self.num_grains < 1:
            raise InputError(f"`num_grains` is {self.num_grains}; it must be at least 1")
        num_ends = np.size(self.cut_s)
        names = ("forward_s", "backward_s", "reduce_s", "fits", "cut_s")
        shapes = {name: np.shape(getattr(self, name)) for name in names}
        if num_ends < 2 or shapes != dict.fromkeys(names, (num_ends, num_ends)) | {"cut_s": (num_ends,)}:
            raise InputError(
                f"the shapes of a stage table do not agree: {shapes}; for L layers give (L + 1,) for `cut_s` and "
                "(L + 1, L + 1) for the others, with at least one layer"
            )
        is_stage = np.triu(np.ones((num_ends, num_ends), bool), 1)
        is_cut = is_stage[0] & is_stage[:, -1]
        for name in ("forward_s", "backward_s", "reduce_s", "cut_s"):
            is_used = is_cut if name == "cut_s" else is_stage
            checked = at_least(0, name, np.where(is_used, getattr(self, name), 0.0))
            if not np.isfinite(checked).all():
                raise InputError(f"`{name}` has a value that is not finite; mark infeasible stages in `fits` instead")
            object.__setattr__(self, name, checked)
        object.__setattr__(self, "fits", np.asarray(self.fits, bool) & is_stage)

    @property
    def num_layers(self) -> int:
        return len(self.cut_s) - 1

    @classmethod
    def of_profile(
        cls, profile: Profile, grain_size: int, num_grains: int, links: Sequence[DirectedLink], num_replicas: int = 1
    ) -> "StageTable":
        """Tabulate all stages of a profile. Replicas reduce their gradients as fast as any all-reduce can.

        `links` are the link between two members, or the links to the store and from it.
        """
        layers = profile.layers
        forward_s = stage_forward_s(profile, grain_size)
        bytes_per_s = min((link.bytes_per_s for link in links), default=math.inf)
        reduce_s = np.zeros_like(forward_s)
        if num_replicas > 1:
            reduce_s += streaming_bound_s(
                span_sums([layer.parameter_bytes for layer in layers]), num_replicas, bytes_per_s
            )
        return cls(
            forward_s=forward_s,
            backward_s=span_sums([layer.backward_s(grain_size) for layer in layers]),
            cut_s=np.array([0.0, *(message_s(layer.boundary.at(grain_size), links) for layer in layers)]),
            num_grains=num_grains,
            reduce_s=reduce_s,
            fits=np.ones(forward_s.shape, bool),
        )

    def step_s(self, ends: NDArray[np.int64]) -> Array:
        """Hydrozoa's step time T = max_j (T^(M)_j + T^(D)_j) (§3.4); infinite where a stage does not fit.

        The last axis of `ends` is the stages of one partition, each given by its end.
        """
        firsts = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
        forward, backward, cut = self.forward_s[firsts, ends], self.backward_s[firsts, ends], self.cut_s[ends]
        others = self.num_grains - 1
        forward_end = forward.sum(-1) + cut.sum(-1) + others * np.maximum(forward, cut).max(-1)
        passing = np.add.accumulate((backward + cut)[..., ::-1], axis=-1)[..., ::-1]
        slowest = np.maximum.accumulate(np.maximum(backward, cut)[..., ::-1], axis=-1)[..., ::-1]
        last = (passing + others * slowest + self.reduce_s[firsts, ends]).max(-1)
        step_s: Array = np.where(self.fits[firsts, ends].all(-1), forward_end + last, np.inf)
        return step_s


def stage_forward_s(profile: Profile, grain_size: int, *, crowded: bool = False) -> Array:
    """Forward time of every stage by [first, end]. The first and the last stage also read the samples."""
    forward_s = span_sums([layer.forward_s(grain_size, crowded=crowded) for layer in profile.layers])
    reading_s = profile.load_s_per_sample * grain_size
    forward_s[0, 1:] += reading_s
    forward_s[1:-1, -1] += reading_s
    return forward_s


def span_sums(values: ArrayLike) -> Array:
    """Table of the sums of values[first:end] by [first, end]; 0 where the span is empty."""
    summands = np.asarray(values, np.float64)
    table = np.zeros((len(summands) + 1, len(summands) + 1))
    for first in range(len(summands)):  # a difference of two long sums would lose digits
        table[first, first + 1 :] = np.cumsum(summands[first:])
    return table


def partition_of(ends: NDArray[np.int64]) -> Partition:
    """Partition whose stages end at these layers."""
    return tuple(pairwise([0, *ends.tolist()]))
