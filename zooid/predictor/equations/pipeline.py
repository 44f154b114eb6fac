"""Step times of pipelines: FuncPipe's on functions (§3.4.2, Appendix B), Srifty's with overlapped exchange (§4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.errors import InputError
from zooid.predictor.equations.all_reduce import AllReduce, pipelined_s
from zooid.predictor.equations.array_checks import Array, above_zero, at_least, where


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Times and bytes of stages for one grain. The last axis is the stage; earlier axes are cases, which broadcast.

    Cases with fewer stages end with stages of zeros, which compute nothing; a cut of zero bytes has no message.
    """

    forward_s: Array
    backward_s: Array
    out_bytes: Array
    """Bytes across the cut after the stage, which return as gradients. The last stage's are ignored."""
    parameter_bytes: Array
    bytes_per_s: Array
    """Rate of the stage's member in each direction."""

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


def funcpipe_step_s(
    pipeline: Pipeline,
    num_grains: ArrayLike,
    num_replicas: ArrayLike = 1,
    *,
    latency_s: ArrayLike = 0.0,
    slowdown: ArrayLike = 1.0,
    all_reduce: AllReduce = pipelined_s,
) -> Array:
    """t_iter = t_f + max_i (t_b^i + t_s^i) (FuncPipe (7)), for d replicas of a pipeline of μ grains each.

    One member puts a message and another gets it. Each is a pipeline stage of its own, and takes o/W of its member's
    bandwidth and the latency. β ≥ 1, `slowdown`, is the slowdown of computing while transfers run:

        t_f   = Σ β f + Σ (up + down) + (μ − 1) max(β f, up, down)                        (8), (9)
        t_b^i = the same backward, over the stages from i on and the cuts after i         (10), (11)
        t_s^i = the stage's `all_reduce` among its replicas; γ = 2, δ = 2 + d by default  (12)

    >>> stages = Pipeline([1.0, 2.0], [2.0, 4.0], [10.0, 0.0], [30.0, 30.0], [10.0, 10.0])
    >>> float(funcpipe_step_s(stages, num_grains=3, num_replicas=2))
    31.0
    """
    grains = at_least(1, "num_grains", num_grains)
    replicas = at_least(1, "num_replicas", num_replicas)
    beta = at_least(1, "slowdown", slowdown)[..., None]
    latency = at_least(0, "latency_s", latency_s)[..., None]
    moved = pipeline.out_bytes[..., :-1]
    near_s = where(moved > 0, moved / pipeline.bytes_per_s[..., :-1] + latency)  # an upload forward, a download back
    far_s = where(moved > 0, moved / pipeline.bytes_per_s[..., 1:] + latency)
    forward_s = _forward_end_s(beta * pipeline.forward_s, [near_s, far_s], grains)
    ends_s = forward_s[..., None] + _backward_ends_s(beta * pipeline.backward_s, [near_s, far_s], grains)
    reduced_s = all_reduce(pipeline.parameter_bytes, replicas[..., None], pipeline.bytes_per_s, latency)
    last: Array = (ends_s + reduced_s).max(axis=-1)
    return last


def overlapped_step_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange_s: ArrayLike) -> Array:
    """t_iter = t_fw + max(t_bw, t_pe), of data-parallel members whose all-reduces overlap with the backward.

    t_pe, `exchange_s`, lasts from the start of the backward until the last gradients are exchanged.

    >>> float(overlapped_step_s(1.0, 2.0, 5.0))
    6.0
    """
    backward = at_least(0, "backward_s", backward_s)
    return at_least(0, "forward_s", forward_s) + np.maximum(backward, at_least(0, "exchange_s", exchange_s))


def _forward_end_s(forward_s: Array, crossings_s: Sequence[Array], num_grains: Array) -> Array:
    """When the last grain has passed all stages and crossings: Σ of all + (M − 1) · the longest."""
    longest: Array = forward_s.max(axis=-1)
    total: Array = forward_s.sum(axis=-1)
    for crossing in crossings_s:
        total = total + crossing.sum(axis=-1)
        longest = np.maximum(longest, crossing.max(axis=-1, initial=0.0))
    return total + (num_grains - 1) * longest


def _backward_ends_s(backward_s: Array, crossings_s: Sequence[Array], num_grains: Array) -> Array:
    """When the last grain's backward has ended on each stage, from the start of the first backward.

    Crossings are by cut, of which there is one less than stages. A stage waits for the cuts after it.
    """
    total, longest = _from_the_end(np.add, backward_s), _from_the_end(np.maximum, backward_s)
    for crossing in crossings_s:
        after = np.concatenate([crossing, np.zeros((*crossing.shape[:-1], 1))], axis=-1)
        total = total + _from_the_end(np.add, after)
        longest = np.maximum(longest, _from_the_end(np.maximum, after))
    return total + (num_grains[..., None] - 1) * longest


def _from_the_end(combine: np.ufunc, values: Array) -> Array:
    accumulated: Array = combine.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    return accumulated
