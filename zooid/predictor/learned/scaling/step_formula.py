"""The formula for the time of a data-parallel step, with a handful of unknowns that are fitted to probes.

With n members on k nodes, c of them on the most crowded node, and a local batch of b samples:

- computing: C = (fixed + b × per sample) × c^crowding. Affine in b, with a floor (Srifty §4.1).
- waiting: a step ends with its slowest member. W = C × (1 + noise × m(n)), where m(n) is the mean of the largest of n
  normal deviates (Srifty §4.3 samples it).
- exchanging: S = sync × (k/4)^a × (n/k)^d × c^e across nodes. Of exactly two nodes, one pair carries everything that
  more nodes would split between two neighbours. They therefore have factors of their own: pair × c^f. Inside a single
  node, S = sync × local × 2(n − 1)/n, the traffic of a ring.
- overlap: exchanging overlaps with the last part of computing. T = (1 − h)W + ((hW)^g + S^g)^(1/g). Gradients travel
  during the fraction h of computing, and g is the sharpness of the maximum (Pollux's smooth maximum has h = 1).

Unknowns have no bounds; those of positive quantities are logarithms. So the formula stays physical for any values: time
never falls with b, nor with more members on a node, nor, from three on, with more nodes of the same size. The prior
mean and standard deviation suit any model, because the unknowns are fractions, exponents and ratios.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zooid.predictor.learned.scaling.step_probes import Placement

Array: TypeAlias = NDArray[np.floating[Any]]

PRIOR: dict[str, tuple[float, float]] = {
    "compute": (0.0, 3.0),  # ln of C at the middle batch, over the median step
    "floor": (-1.5, 1.0),  # logit of the fixed fraction of that
    "crowding": (math.log(0.02), 1.5),  # ln of the exponent
    "noise": (math.log(0.05), 1.0),  # ln
    "hidden": (1.0, 1.0),  # logit of h
    "sharpness": (math.log(2.5), 0.5),  # ln of g − 1
    "sync": (0.0, 1.5),  # ln of S with one member on each of four nodes, over the median step
    "local": (-2.5, 1.0),  # ln
    "nodes": (math.log(0.2), 0.6),  # ln of a
    "load": (math.log(0.12), 0.6),  # ln of d
    "crowd": (math.log(0.04), 0.8),  # ln of e
    "pair": (0.2, 0.25),  # ln
    "pair_crowd": (math.log(0.25), 0.6),  # ln of f
}
PRIOR_MEAN: Array = np.array([mean for mean, _ in PRIOR.values()])
PRIOR_SD: Array = np.array([sd for _, sd in PRIOR.values()])
_MIDDLE_NODES = 4
_TINY = 1e-9
_MAX_LOG = 30.0
"""The largest logarithm; beyond it numbers would overflow."""


@dataclass(frozen=True)
class Questions:
    """Placements and local batches as columns."""

    placements: tuple[Placement, ...]
    log_batch: Array
    members: Array
    nodes: Array
    crowd: Array
    slowest: Array
    """m(n), the mean of the largest of n normal deviates."""

    @classmethod
    def of(cls, asked: Sequence[tuple[Placement, int]]) -> "Questions":
        members = [sum(placement) for placement, _ in asked]
        return cls(
            placements=tuple(placement for placement, _ in asked),
            log_batch=np.log([float(batch) for _, batch in asked]),
            members=np.array(members, float),
            nodes=np.array([len(placement) for placement, _ in asked], float),
            crowd=np.array([max(placement) for placement, _ in asked], float),
            slowest=np.array([_mean_of_largest(num) for num in members]),
        )

    @property
    def across(self) -> NDArray[np.bool_]:
        return self.nodes > 1


@dataclass(frozen=True)
class Units:
    """The scale of the unknowns, so that one prior suits steps of a millisecond and of a minute."""

    log_step: float
    log_batch: float


def log_compute(unknowns: Array, asked: Questions, units: Units) -> Array:
    """ln C."""
    compute, floor, crowding = unknowns[:3]
    fixed = _fraction(floor)
    growth = np.log(fixed + (1 - fixed) * np.exp(asked.log_batch - units.log_batch))
    return np.asarray(units.log_step + compute + growth + _positive(crowding) * np.log(asked.crowd))


def log_sync(unknowns: Array, asked: Questions, units: Units) -> Array:
    """ln S; a large negative number for a single member, whose S is 0."""
    sync, local, nodes, load, crowd, pair, pair_crowd = unknowns[6:]
    log_crowd = np.log(asked.crowd)
    across = (
        _positive(nodes) * np.log(asked.nodes / _MIDDLE_NODES)
        + _positive(load) * np.log(asked.members / asked.nodes)
        + _positive(crowd) * log_crowd
        + (asked.nodes == 2) * (pair + _positive(pair_crowd) * log_crowd)
    )
    inside = local + np.log(np.maximum(2 * (asked.members - 1) / asked.members, _TINY))
    return np.asarray(units.log_step + sync + np.where(asked.across, across, inside))


def log_step(unknowns: Array, asked: Questions, compute: Array, sync: Array) -> Array:
    """ln T, from ln C and ln S."""
    noise, hidden, sharpness = unknowns[3:6]
    overlap, power = _fraction(hidden), 1 + _positive(sharpness)
    waited = compute + np.log1p(_positive(noise) * asked.slowest)
    overlapped = math.log(overlap) + waited
    longest = np.where(asked.members > 1, np.logaddexp(power * overlapped, power * sync) / power, overlapped)
    return np.asarray(np.logaddexp(math.log1p(-overlap) + waited, longest))


def _positive(log: float) -> float:
    return math.exp(min(log, _MAX_LOG))


def _fraction(logit: float) -> float:
    return 1 / (1 + math.exp(-min(max(logit, -_MAX_LOG), _MAX_LOG)))


def _mean_of_largest(num: int) -> float:
    """The mean of the largest of `num` standard normal deviates, by Blom's approximation."""
    return 0.0 if num < 2 else NormalDist().inv_cdf((num - 0.375) / (num + 0.25))
