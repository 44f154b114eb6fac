"""Srifty's iteration of data-parallel members, whose all-reduces run beside the backward pass (§4.3)."""

import numpy as np
from numpy.typing import ArrayLike

from zooid.predictor.equations.array_checks import Array, at_least


def overlapped_step_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange_s: ArrayLike) -> Array:
    """t_iter = t_fw + max(t_bw, t_pe), t_pe from the begin of the backward until the last gradients are exchanged.

    >>> float(overlapped_step_s(1.0, 2.0, 5.0))
    6.0
    """
    backward = at_least(0, "backward_s", backward_s)
    return at_least(0, "forward_s", forward_s) + np.maximum(backward, at_least(0, "exchange_s", exchange_s))
