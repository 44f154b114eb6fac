"""Whether more members are worth it: granularity and what follows from it (clouds and continents §3, §8).

All of it assumes that computing is divided among members and that communication takes as long as before: what is said
to be gained is gained at best.
"""

import numpy as np
from numpy.typing import ArrayLike

from zooid.predictor.equations.array_checks import Array, above_zero, at_least


def granularity(compute_s: ArrayLike, communication_s: ArrayLike) -> Array:
    """G = T_calc / T_comm (equation (1)); infinite without communication.

    >>> float(granularity(6.0, 1.5))
    4.0
    """
    compute, communication = np.broadcast_arrays(
        above_zero("compute_s", compute_s), at_least(0, "communication_s", communication_s)
    )
    ratio: Array = np.full(compute.shape, np.inf)
    np.divide(compute, communication, out=ratio, where=communication > 0)
    return ratio[()]


def samples_per_s(num_samples: ArrayLike, compute_s: ArrayLike, communication_s: ArrayLike) -> Array:
    """samples / (T_comm + T_calc); with T_calc = 0 the limit that no number of members exceeds (equation (2)).

    >>> samples_per_s(100, [15.0, 0.0], 5.0).tolist()
    [5.0, 20.0]
    """
    total = at_least(0, "compute_s", compute_s) + at_least(0, "communication_s", communication_s)
    return at_least(0, "num_samples", num_samples) / above_zero("compute_s + communication_s", total)


def speedup_of_members(granularity: ArrayLike, num_before: ArrayLike, num_after: ArrayLike) -> Array:
    """How many times as fast another number of members makes a step: (G + 1) / (G · before/after + 1).

    >>> speedup_of_members([1, 10], 1, 2).round(2).tolist()
    [1.33, 1.83]
    """
    part = 1 / (1 + at_least(0, "granularity", granularity))  # of communication; so G may be infinite
    fewer = at_least(1, "num_before", num_before) / at_least(1, "num_after", num_after)
    return 1 / ((1 - part) * fewer + part)


def speedup_of_batch(granularity: ArrayLike, factor: ArrayLike = 2.0) -> Array:
    """How many times as many samples a second a batch of `factor` times the size brings: f(G + 1) / (fG + 1).

    >>> speedup_of_batch([1, 10]).round(2).tolist()
    [1.33, 1.05]
    """
    part = 1 / (1 + at_least(0, "granularity", granularity))
    times = above_zero("factor", factor)
    return times / ((1 - part) * times + part)


def best_speedup(granularity: ArrayLike) -> Array:
    """What any number of members can bring: G + 1, equation (2) over what there is now.

    >>> float(best_speedup(1.0))
    2.0
    """
    return at_least(0, "granularity", granularity) + 1
