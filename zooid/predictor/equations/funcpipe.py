"""FuncPipe's iteration time on functions that meet in an object store (§3.4.2, Appendix B)."""

from numpy.typing import ArrayLike

from zooid.predictor.equations.all_reduce import AllReduce, pipelined_s
from zooid.predictor.equations.array_checks import Array, at_least, where
from zooid.predictor.equations.pipeline import Pipeline, backward_ends_s, forward_end_s


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

    A message is put by one member and got by another, which are stages of their own: o/W of the one's and of the
    other's bandwidth, and the latency each time. β ≥ 1, `slowdown`, is what computing takes longer beside transfers:

        t_f   = Σ β f + Σ (up + down) + (μ − 1) max(β f, up, down)                        (8), (9)
        t_b^i = the same backwards, over the stages from i on and the cuts behind i       (10), (11)
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
    near_s = where(moved > 0, moved / pipeline.bytes_per_s[..., :-1] + latency)  # up forwards, down backwards
    far_s = where(moved > 0, moved / pipeline.bytes_per_s[..., 1:] + latency)
    forward_s = forward_end_s(beta * pipeline.forward_s, [near_s, far_s], grains)
    ends_s = forward_s[..., None] + backward_ends_s(beta * pipeline.backward_s, [near_s, far_s], grains)
    reduced_s = all_reduce(pipeline.parameter_bytes, replicas[..., None], pipeline.bytes_per_s, latency)
    last: Array = (ends_s + reduced_s).max(axis=-1)
    return last
