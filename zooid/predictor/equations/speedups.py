"""The speedup that a granularity G = T_calc / T_comm allows (clouds and continents §3, §8).

These formulas assume that members divide computing evenly, and that communication takes as long as before. So they give
upper bounds on the speedup.
"""

from numpy.typing import ArrayLike

from zooid.predictor.equations.array_checks import Array, above_zero, at_least


def speedup_of_members(granularity: ArrayLike, num_before: ArrayLike, num_after: ArrayLike) -> Array:
    """The speedup of a step from another number of members: (G + 1) / (G · before/after + 1).

    >>> speedup_of_members([1, 10], 1, 2).round(2).tolist()
    [1.33, 1.83]
    """
    communication = 1 / (1 + at_least(0, "granularity", granularity))  # as a fraction, so that G may be infinite
    ratio = at_least(1, "num_before", num_before) / at_least(1, "num_after", num_after)
    return 1 / ((1 - communication) * ratio + communication)


def speedup_of_batch(granularity: ArrayLike, factor: ArrayLike = 2.0) -> Array:
    """The gain in samples a second from a batch that is `factor` times as large: f(G + 1) / (fG + 1).

    >>> speedup_of_batch([1, 10]).round(2).tolist()
    [1.33, 1.05]
    """
    communication = 1 / (1 + at_least(0, "granularity", granularity))
    factors = above_zero("factor", factor)
    return factors / ((1 - communication) * factors + communication)
