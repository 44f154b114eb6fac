"""Which half-built pipelines can be dropped, because another one of the same layers becomes at least as good.

Put the same stages in front of two labels i and j. The time of the one is more than that of the other by at most

    e = max(ended_i − ended_j, both_i − both_j + (μ − 1)(back_i − back_j)⁺) + (μ − 1)(ahead_i − ahead_j)⁺

and its rate by r_i − r_j. So i replaces j where e ≤ 0 and r_i ≤ r_j; and where only values below z count, one may make
up for the other: with C = α₁ · rate + α₂ of the completed j, c = α₁(r_i − r_j) and T its time,

    dearer but faster:   (T + e)(C + c) ≤ TC  ⇐  −e ≥ z c / (C (C + c)),      since T < z/C; worst at the least C
    cheaper but slower:  (T + e)(C + c) ≤ TC  ⇐   e ≤ T |c| / (z/T − |c|),    since C < z/T; worst at the least T

The second would exceed a time limit, so under one it is not used.
"""

import numpy as np
from numpy.typing import NDArray

from zooid.planner.resources.bounds import Aim
from zooid.planner.resources.labels import Labels
from zooid.planner.resources.stages import Ints
from zooid.predictor.equations.array_checks import Array

BLOCK = 128


def undominated(
    labels: Labels, laps: int, num_replicas: int, aim: Aim, below: float, least_rate: float, fastest_s: Array
) -> Ints:
    """Of labels at one place, in this order of preference, those that no earlier one replaces.

    Only values `below` count. `least_rate` is what any completion adds, `fastest_s` what each takes at least.
    """
    price = aim.usd * num_replicas
    weight = price * (labels.rate + least_rate) + aim.s

    def replaces(by: Ints, of: Ints) -> NDArray[np.bool_]:
        def more(values: Array) -> Array:
            difference: Array = values[by][:, None] - values[of]
            return difference

        later = more(labels.both_s) + laps * np.maximum(more(labels.back_s), 0.0)
        excess = np.maximum(more(labels.ended_s), later) + laps * np.maximum(more(labels.ahead_s), 0.0)
        dearer = price * more(labels.rate)
        least = weight[of] * (weight[of] + np.maximum(dearer, 0.0))
        allowed = -below * np.maximum(dearer, 0.0) / np.maximum(least, 1e-300)
        if not np.isfinite(aim.limit_s):
            cheaper = np.maximum(-dearer, 0.0)
            slowest = np.maximum(below / np.maximum(fastest_s[of], 1e-300) - cheaper, 1e-300)
            allowed = np.where(dearer > 0, allowed, fastest_s[of] * cheaper / slowest)
        found: NDArray[np.bool_] = excess <= allowed
        return found

    kept: Ints = np.zeros(0, np.int64)
    for start in range(0, len(labels), BLOCK):
        block = np.arange(start, min(len(labels), start + BLOCK))
        if len(kept):
            block = block[~replaces(kept, block).any(axis=0)]
        # an earlier one that is itself replaced still counts: what replaces it, replaces this one too
        block = block[~np.triu(replaces(block, block), 1).any(axis=0)]
        kept = np.concatenate([kept, block])
    return kept
