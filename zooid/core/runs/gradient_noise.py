"""The gradient noise scale of McCandlish et al. (2018), from gradients at two batch sizes.

The squared norm of a mean gradient over B samples is |G|² + tr(Σ) / B on average, where G is the true gradient and Σ
the covariance of the gradients of single samples. Two batch sizes give both terms (their appendix A.1).
"""

import math
from collections.abc import Sequence

from zooid.core.records import Record, require_at_least

_SMOOTHING = 0.95
"""Largest weight of the past in the running means, which look back over about 20 steps."""
_MIN_STEPS = 10
"""Number of measured steps before an estimate is worth anything."""


class NoiseEstimate(Record, frozen=True, kw_only=True):
    """Running means of both terms. Their ratio is used, since a mean of ratios would be biased."""

    num_steps: int = 0
    """Number of measured steps."""
    square_norm: float = 0.0
    """Running mean of |G|², which may be negative while it is small."""
    trace: float = 0.0
    """Running mean of tr(Σ)."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "num_steps")

    @property
    def scale(self) -> float | None:
        """The simple noise scale tr(Σ) / |G|² in samples; None while it is not known.

        It is infinite if the gradient cannot be told from noise.
        """
        if self.num_steps < _MIN_STEPS or self.trace <= 0:
            return None
        return self.trace / self.square_norm if self.square_norm > 0 else math.inf

    def after(self, small_square: float, small_sizes: Sequence[int], square: float, size: int) -> "NoiseEstimate":
        """Return the estimate after one more step of `size` samples, whose mean gradient has the squared norm `square`.

        `small_square` is the mean over squared norms at the batch sizes `small_sizes`, all below `size`.

        >>> NoiseEstimate().after(3.0, [2, 2], 1.5, 8).trace
        4.0
        """
        small_inverse = sum(1 / small for small in small_sizes) / len(small_sizes)
        trace = (small_square - square) / (small_inverse - 1 / size)
        square_norm = square - trace / size
        past = min(_SMOOTHING, self.num_steps / (self.num_steps + 1))  # a plain mean of the first steps
        return NoiseEstimate(
            num_steps=self.num_steps + 1,
            square_norm=past * self.square_norm + (1 - past) * square_norm,
            trace=past * self.trace + (1 - past) * trace,
        )


def first_grain_sizes(
    grains: Sequence[Sequence[int]], step_size: int, grain_size: int, *, keeps_single: bool
) -> list[int | None]:
    """Return the size of each replica's first grain, whose gradient it measures; None where it cannot.

    `keeps_single` says whether a replica still has the gradient of its first grain if this is also its last.

    >>> first_grain_sizes([(0, 1), (2,)], 10, 4, keeps_single=False)
    [4, None]
    """
    if sum(map(len, grains)) < 2:
        return [None] * len(grains)
    least = 1 if keeps_single else 2
    return [min(grain_size, step_size - own[0] * grain_size) if len(own) >= least else None for own in grains]
