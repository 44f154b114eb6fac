"""Hydrozoa's runtime of a step with data and pipeline parallelism (§3.3, §3.4, Appendix A.1)."""

import numpy as np
from numpy.typing import ArrayLike

from zooid.predictor.equations.all_reduce import ring_s
from zooid.predictor.equations.array_checks import Array, at_least
from zooid.predictor.equations.link_fit import LinkFit
from zooid.predictor.equations.pipeline import Pipeline, backward_ends_s, forward_end_s

_NOTHING_MORE = LinkFit()


def hydrozoa_step_s(
    pipeline: Pipeline, num_grains: ArrayLike, num_replicas: ArrayLike = 1, link: LinkFit = _NOTHING_MORE
) -> Array:
    """A step of A replicas, in each of which M grains pass k stages.

    Without replicas (Appendix A.1), with c_i = a_{i−1}/D the time of a message over a cut:

        Σ(f_i + b_i) + 2 Σ c_i + (M − 1)(t_k + r_1),   t_k = max(max f, max c),   r_1 = max(max b, max c)

    Stage j ends its backward when the last grain has come down to it, with r_j over the stages from j on; then its
    replicas reduce around a ring, T^(D)_j as in `ring_s` with α and β of `link`; T = max_j (T^(M)_j + T^(D)_j) (§3.4).
    Between members of different bandwidth the slower one counts.

    >>> stages = Pipeline([1.0, 2.0], [2.0, 4.0], [10.0, 0.0], [0.0, 30.0], [10.0, 10.0])
    >>> float(hydrozoa_step_s(stages, num_grains=3))
    23.0
    """
    grains = at_least(1, "num_grains", num_grains)
    replicas = at_least(1, "num_replicas", num_replicas)
    rates = pipeline.bytes_per_s
    cut_s = pipeline.out_bytes[..., :-1] / np.minimum(rates[..., :-1], rates[..., 1:])
    forward_s = forward_end_s(pipeline.forward_s, [cut_s], grains)
    ends_s = forward_s[..., None] + backward_ends_s(pipeline.backward_s, [cut_s], grains)
    reduced_s = ring_s(pipeline.parameter_bytes, replicas[..., None], rates, link.s_per_message, link.s_per_byte)
    last: Array = (ends_s + reduced_s).max(axis=-1)
    return last
