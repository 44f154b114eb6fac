"""Dollars of a step, of samples and of traffic, for whole arrays of cases; bills of runs are `predictor.money`'s."""

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.errors import InputError
from zooid.core.units import SECONDS_PER_HOUR
from zooid.predictor.equations.array_checks import Array, above_zero, at_least


def step_usd(step_s: ArrayLike, usd_per_hour: ArrayLike, num_replicas: ArrayLike = 1) -> Array:
    """c_iter = P · t_iter · d Σ m_i (FuncPipe (5), (6)): a function's price is by its memory, P · m_i.

    The last axis of `usd_per_hour` is the stage: what a member of each costs.

    >>> float(step_usd(36.0, [0.5, 1.5], num_replicas=2))
    0.04
    """
    each = at_least(0, "usd_per_hour", usd_per_hour)
    fleet: Array = at_least(1, "num_replicas", num_replicas) * np.atleast_1d(each).sum(axis=-1)
    return at_least(0, "step_s", step_s) / SECONDS_PER_HOUR * fleet


def usd_per_million_samples(usd_per_hour: ArrayLike, samples_per_s: ArrayLike) -> Array:
    """What the whole fleet costs in an hour, over the millions of samples that it gets through (clouds and continents,
    Figure 1).

    >>> float(usd_per_million_samples(6.30, 413).round(2))
    4.24
    """
    per_hour = above_zero("samples_per_s", samples_per_s) * SECONDS_PER_HOUR
    return at_least(0, "usd_per_hour", usd_per_hour) / per_hour * 1e6


def traffic_usd(num_gb: ArrayLike, shares: ArrayLike, usd_per_gb: ArrayLike) -> Array:
    """Traffic of which given shares go over routes of given prices (clouds and continents §5); the last axis of both is
    the route.

    >>> float(traffic_usd(60, [1 / 3, 2 / 3], [0.01, 0.02]).round(6))
    1.0
    """
    parts = at_least(0, "shares", shares)
    if (np.abs(parts.sum(axis=-1) - 1) > 1e-9).any():
        raise InputError(f"`shares` {parts.tolist()} must sum to 1 over their last axis, the routes")
    dollars: Array = at_least(0, "num_gb", num_gb) * (parts * at_least(0, "usd_per_gb", usd_per_gb)).sum(axis=-1)
    return dollars
