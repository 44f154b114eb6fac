"""FuncPipe's model of a stage's memory (3b), which is coarser than zooid's own."""

from collections.abc import Sequence

import numpy as np

from zooid.planner.stage_sizes import Degree
from zooid.predictor.equations.array_checks import Array


def funcpipe_memory_bytes(
    parameter_bytes: Array, activation_bytes: Array, degrees: Sequence[Degree], base_bytes: float = 0.0
) -> Array:
    """By [degree, first, end]: μ â + ŝ (4 − 2y₁) + s₀, which are the activations of all grains, parameters, gradients
    and, where there is more than one replica, the buffers of synchronisation."""
    held, kept = _span_sums(parameter_bytes), _span_sums(activation_bytes)
    return np.array(
        [degree.num_grains * kept + (2 if degree.num_replicas == 1 else 4) * held + base_bytes for degree in degrees]
    )


def _span_sums(values: Array) -> Array:
    total = np.concatenate([[0.0], np.cumsum(values)])
    sums: Array = total[None, :] - total[:-1, None]
    return sums
