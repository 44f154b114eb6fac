"""Stages of a pipeline as arrays, for closed forms that are evaluated for many partitions at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.errors import InputError
from zooid.core.plans.stage import StageTimes
from zooid.predictor.equations.array_checks import Array, above_zero, at_least


@dataclass(frozen=True, eq=False)
class Pipeline:
    """What stages take for one grain. The last axis is the stage; axes before it are cases, and broadcast.

    Cases of fewer stages end with stages of zeros: nothing is computed there, and a cut of no bytes has no message.
    """

    forward_s: Array
    backward_s: Array
    out_bytes: Array
    """What crosses the cut behind the stage, and as gradients back; the last stage's counts for nothing."""
    parameter_bytes: Array
    bytes_per_s: Array
    """Of the stage's member, each way."""

    def __post_init__(self) -> None:
        for field in fields(self):
            values = getattr(self, field.name)
            is_rate = field.name == "bytes_per_s"
            checked = above_zero(field.name, values) if is_rate else at_least(0, field.name, values)
            object.__setattr__(self, field.name, checked)
        sizes = {field.name: np.shape(getattr(self, field.name))[-1:] for field in fields(self)}
        if len(set(sizes.values())) != 1 or () in sizes.values():
            told = ", ".join(f"`{name}` has {size[0] if size else 'no axis of'}" for name, size in sizes.items())
            raise InputError(f"the last axis must be the same stages everywhere, but of stages {told}")

    @classmethod
    def of(cls, stages: Sequence[StageTimes], bytes_per_s: ArrayLike) -> "Pipeline":
        """One partition; `bytes_per_s` is one rate for all stages, or one for each."""
        return cls(
            forward_s=np.array([stage.forward_s for stage in stages]),
            backward_s=np.array([stage.backward_s for stage in stages]),
            out_bytes=np.array([stage.out_bytes for stage in stages]),
            parameter_bytes=np.array([sum(bucket.num_bytes for bucket in stage.buckets) for stage in stages], float),
            bytes_per_s=np.broadcast_to(np.asarray(bytes_per_s, np.float64), (len(stages),)),
        )


def forward_end_s(forward_s: Array, crossings_s: Sequence[Array], num_grains: Array) -> Array:
    """When the last grain has passed all stages and, between them, all crossings, each a stage of its own.

    Σ of all + (M − 1) · the longest.
    """
    longest: Array = forward_s.max(axis=-1)
    total: Array = forward_s.sum(axis=-1)
    for crossing in crossings_s:
        total = total + crossing.sum(axis=-1)
        longest = np.maximum(longest, crossing.max(axis=-1, initial=0.0))
    return total + (num_grains - 1) * longest


def backward_ends_s(backward_s: Array, crossings_s: Sequence[Array], num_grains: Array) -> Array:
    """The same backwards, for every stage: when the last grain has come down to it from the last stage.

    Crossings are by cut, of which there is one less; the cuts that count for a stage are those behind it.
    """
    total, longest = _from_the_end(np.add, backward_s), _from_the_end(np.maximum, backward_s)
    for crossing in crossings_s:
        behind = np.concatenate([crossing, np.zeros((*crossing.shape[:-1], 1))], axis=-1)
        total = total + _from_the_end(np.add, behind)
        longest = np.maximum(longest, _from_the_end(np.maximum, behind))
    return total + (num_grains[..., None] - 1) * longest


def _from_the_end(combine: np.ufunc, values: Array) -> Array:
    so_far: Array = combine.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    return so_far
