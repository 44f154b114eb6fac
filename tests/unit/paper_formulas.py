"""The papers' formulas in their plainest form: the reference for what the package computes in other ways."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.plans.stage import StageTimes
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.partition import StageTable
from zooid.planner.partition.problem import span_sums
from zooid.predictor import DirectedLink
from zooid.predictor.equations.array_checks import Array


def hydrozoa_step_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    cut_s: Sequence[float],
    num_grains: int,
    reduce_s: Sequence[float] | None = None,
) -> float:
    """T = max_j (T^(M)_j + T^(D)_j) of Hydrozoa §3.4 and Appendix A.1; `cut_s` is by cut, one less than stages.

    Σ(f_i + b_i) + 2 Σ c_i + (M − 1)(t_k + r_j), t_k = max(max f, max c), r_j = max(max b, max c) from stage j on.

    >>> hydrozoa_step_s([1.0, 2.0], [2.0, 4.0], [1.0], 3)
    23.0
    """
    reduced_s = reduce_s or [0.0] * len(forward_s)
    turn_s = sum(forward_s) + sum(cut_s) + (num_grains - 1) * max([*forward_s, *cut_s])
    ends_s = [
        sum(backward_s[j:]) + sum(cut_s[j:]) + (num_grains - 1) * max([*backward_s[j:], *cut_s[j:]]) + reduced_s[j]
        for j in range(len(forward_s))
    ]
    return turn_s + max(ends_s)


def hydrozoa_ring_s(
    num_bytes: ArrayLike, num_replicas: int, rate: float, alpha: float = 0.0, beta: float = 0.0
) -> Array:
    """T^(D) of Hydrozoa §3.4: 2(A − 1) rounds of |p|/A bytes, each of which takes (1/D + α) bytes + β."""
    part = np.asarray(num_bytes, float) / num_replicas
    return np.asarray(2 * (num_replicas - 1) * (part / rate + alpha * part + beta))


def pipeline_s(stages: Sequence[StageTimes], num_grains: int, links: Sequence[DirectedLink]) -> float:
    """Hydrozoa's step of one replica, where a message crosses all of these links."""
    cut_s = [
        sum(link.rtt_s + stage.out_bytes / link.bytes_per_s for link in links) if stage.out_bytes else 0.0
        for stage in stages[:-1]
    ]
    return hydrozoa_step_s(
        [stage.forward_s for stage in stages], [stage.backward_s for stage in stages], cut_s, num_grains
    )


def table_of_layers(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    out_bytes: ArrayLike,
    parameter_bytes: ArrayLike,
    bytes_per_s: float,
    num_grains: int,
    *,
    num_replicas: int = 1,
    alpha: float = 0.0,
    beta: float = 0.0,
    fits: ArrayLike | None = None,
) -> StageTable:
    """The planner's table in Hydrozoa's case: stages are sums over layers, and all members are equal."""
    forward = span_sums(forward_s)
    return StageTable(
        forward_s=forward,
        backward_s=span_sums(backward_s),
        cut_s=np.append(0.0, np.asarray(out_bytes, float)) / bytes_per_s,
        num_grains=num_grains,
        reduce_s=hydrozoa_ring_s(span_sums(parameter_bytes), num_replicas, bytes_per_s, alpha, beta),
        fits=np.ones(forward.shape, bool) if fits is None else np.asarray(fits, bool),
    )


def step_usd(step_s: ArrayLike, usd_per_hour: ArrayLike, num_replicas: int = 1) -> Array:
    """c_iter = P · t_iter · d Σ m_i (FuncPipe (5), (6)); the last axis of `usd_per_hour` is the stage."""
    return np.asarray(np.asarray(step_s) / SECONDS_PER_HOUR * num_replicas * np.sum(usd_per_hour, axis=-1))


def granularity(compute_s: float, communication_s: float) -> float:
    """G = T_calc / T_comm (clouds and continents, equation (1)); infinite without communication."""
    return compute_s / communication_s if communication_s > 0 else math.inf


def samples_per_s(num_samples: float, compute_s: float, communication_s: float) -> float:
    """Samples / (T_comm + T_calc); with T_calc = 0 the limit of equation (2) of clouds and continents."""
    return num_samples / (compute_s + communication_s)


def best_speedup(granularity: float) -> float:
    """The limit for any number of members: G + 1 (clouds and continents, equation (2) over the present rate)."""
    return granularity + 1


def usd_per_million_samples(usd_per_hour: float, samples_per_s: float) -> float:
    """The price of a fleet for a million samples (clouds and continents, Figure 1)."""
    return usd_per_hour / (samples_per_s * SECONDS_PER_HOUR) * 1e6


def traffic_usd(num_gb: float, fractions: Sequence[float], usd_per_gb: Sequence[float]) -> float:
    """The price of traffic that is split over routes (clouds and continents §5)."""
    return num_gb * sum(fraction * usd for fraction, usd in zip(fractions, usd_per_gb, strict=True))
