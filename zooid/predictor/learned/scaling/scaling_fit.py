"""The fit of the step formula's unknowns, and of deviations from the formula, to a few measured steps.

Nodes differ, and so does the network from hour to hour, in ways that no formula describes. So ln C and ln S have
deviations, which are Gaussian processes. Those of C are smooth in the batch, those of S in nodes and members, and both
are shared by steps of one placement. Without much evidence a deviation stays near zero, so that far from the probes the
formula alone decides.

Unknowns and deviations are fitted together as the most probable ones, by the Levenberg-Marquardt method on logarithms
of times, where errors are relative. Outliers weigh less (as with Student's t), because networks stutter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zooid.predictor.learned.scaling.step_formula import (
    PRIOR_MEAN,
    PRIOR_SD,
    Array,
    Questions,
    Units,
    log_compute,
    log_step,
    log_sync,
)

BATCH_SD, BATCH_LENGTH = 0.15, 0.7
"""Deviation of C from an affine law, and its correlation length in ln b."""
NODE_SD, NODE_LENGTH = 0.03, 1.5
"""Deviation of C that steps of one placement share, because its nodes are faster or slower."""
LOAD_SD, SHAPE_SD, SHAPE_LENGTH = 0.05, 0.15, 0.7
"""Deviations of C and S from their power laws, smooth in the logarithms of nodes, members and crowd."""
PLACEMENT_SD = 0.1
"""Deviation of S that all steps of one placement share."""
HOUR_SD, HOUR_LENGTH = 0.1, 0.7
"""Deviation of S that steps of one placement with similar batches share, which were measured within an hour."""
STEP_NOISE, COMPUTE_NOISE, SYNC_NOISE = 0.01, 0.01, 0.15
"""Noise between two measurements of the same step: in the step itself, in C, and in S as far as it shows."""
OWN_NOISE = 0.05
"""Noise of step_s − sync_s as a measurement of C."""
DEGREES = 3.0
"""Degrees of freedom of Student's t."""
_LARGEST_SYNC = 0.98
"""If sync takes a larger fraction of a step than this, the rest says nothing about C."""
_MEDIAN_DEVIATION = 0.6745
"""Median of the absolute value of a standard normal deviate."""
_EXPECTED_ROWS = 10
"""Number of imaginary rows with the expected error that scale the spread, so that a few lucky rows promise nothing."""
_ROUNDS = 60
_FIRST_NOISE_FACTOR = 20.0
_TOLERANCE = 1e-4
_JITTER = 1e-9
_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class ProbeColumns:
    """The probes as columns; `sync_s` is NaN where it was not measured."""

    asked: Questions
    step_s: Array
    sync_s: Array


@dataclass(frozen=True)
class FitState:
    """The unknowns, and the deviations of ln C and ln S at the measured rows as independent normal numbers."""

    unknowns: Array
    compute: Array
    sync: Array

    def moved(self, change: Array) -> "FitState":
        num = len(self.unknowns)
        compute, sync = np.split(change[num:], 2)
        return FitState(self.unknowns + change[:num], self.compute + compute, self.sync + sync)


class ScalingFit:
    """The most probable unknowns and deviations of these rows, and their uncertainty."""

    def __init__(self, rows: ProbeColumns) -> None:
        self._rows = rows.asked
        self.units = Units(float(np.median(np.log(rows.step_s))), float(np.mean(rows.asked.log_batch)))
        compute, sync = covariances(rows.asked, rows.asked)
        jitter = _JITTER * np.eye(len(compute))
        self._compute_root = np.linalg.cholesky(compute + jitter)
        self._sync_root = np.linalg.cholesky(sync + jitter)
        with np.errstate(invalid="ignore"):
            self._has_own = rows.sync_s < _LARGEST_SYNC * rows.step_s
        own_s = np.where(self._has_own, rows.step_s - rows.sync_s, rows.step_s)
        self._target = np.log(np.concatenate([rows.step_s, own_s]))
        self._solve()

    def log_step(self, asked: Questions) -> tuple[Array, Array, Array]:
        """ln T, ln C, and the standard deviation of ln T."""
        compute_cov, sync_cov = covariances(asked, self._rows)
        compute_row = np.linalg.solve(self._compute_root, compute_cov.T).T
        sync_row = np.linalg.solve(self._sync_root, sync_cov.T).T
        state = self._state
        compute_by, sync_by = compute_row @ state.compute, sync_row @ state.sync

        def step(unknowns: Array, more_compute: float = 0.0, more_sync: float = 0.0) -> Array:
            compute = log_compute(unknowns, asked, self.units) + compute_by + more_compute
            return log_step(unknowns, asked, compute, log_sync(unknowns, asked, self.units) + sync_by + more_sync)

        middle = step(state.unknowns)
        by_compute = (step(state.unknowns, more_compute=_DIFFERENCE) - middle) / _DIFFERENCE
        by_sync = (step(state.unknowns, more_sync=_DIFFERENCE) - middle) / _DIFFERENCE
        by_unknowns = [(step(state.unknowns + shift) - middle) / _DIFFERENCE for shift in _shifts(state.unknowns)]
        slopes = np.hstack(
            [np.stack(by_unknowns, axis=1), by_compute[:, None] * compute_row, by_sync[:, None] * sync_row]
        )
        unexplained = by_compute**2 * (BATCH_SD**2 + LOAD_SD**2 + NODE_SD**2 - (compute_row**2).sum(axis=1))
        unexplained += by_sync**2 * (SHAPE_SD**2 + PLACEMENT_SD**2 + HOUR_SD**2 - (sync_row**2).sum(axis=1))
        variance = ((slopes @ self._covariance) * slopes).sum(axis=1) + np.maximum(unexplained, 0.0)
        variance += _step_variance(by_compute, by_sync)
        compute = log_compute(state.unknowns, asked, self.units) + compute_by
        return middle, compute, self._scale * np.sqrt(variance)

    def _solve(self) -> None:
        num = len(self._rows.placements)
        state = FitState(PRIOR_MEAN.copy(), np.zeros(num), np.zeros(num))
        damping = 1e-2
        for noise_factor in _noise_factors():
            predicted = self._predicted(state)
            slopes, by_compute, by_sync = self._slopes(state, predicted)
            noise = noise_factor**2 * np.concatenate([_step_variance(by_compute, by_sync), np.full(num, OWN_NOISE**2)])
            miss = self._target - predicted
            weights = np.minimum((DEGREES + 1) / (DEGREES + miss**2 / noise), 1.0) / noise
            weights[num:][~self._has_own] = 0.0
            gradient = slopes.T @ (weights * miss) + self._towards_prior(state)
            precision = (slopes.T * weights) @ slopes + np.diag(_prior_precision(num))
            cost = self._cost(state, predicted, weights)
            while True:
                damped = precision + damping * np.diag(np.diag(precision))
                change = np.linalg.solve(damped, gradient)
                candidate = state.moved(change)
                is_better = self._cost(candidate, self._predicted(candidate), weights) <= cost
                if is_better or damping > 1e8:
                    break
                damping *= 4
            if is_better:
                state = candidate
            damping = max(damping / 8, 1e-8) if is_better else 1e-2
            if noise_factor == 1 and (not is_better or np.max(np.abs(change[: len(PRIOR_MEAN)])) < _TOLERANCE):
                break
        self._state = state
        self._covariance = np.linalg.inv(precision)
        self._scale = _scale(slopes[:num], weights[:num], miss[:num], noise[:num], self._covariance)

    def _predicted(self, state: FitState) -> Array:
        compute, sync = self._log_parts(state)
        return np.concatenate([log_step(state.unknowns, self._rows, compute, sync), compute])

    def _log_parts(self, state: FitState) -> tuple[Array, Array]:
        """ln C and ln S at the measured rows."""
        compute = log_compute(state.unknowns, self._rows, self.units) + self._compute_root @ state.compute
        sync = log_sync(state.unknowns, self._rows, self.units) + self._sync_root @ state.sync
        return compute, sync

    def _slopes(self, state: FitState, predicted: Array) -> tuple[Array, Array, Array]:
        """Derivatives of both measurements of each row by unknowns and deviations, and of steps by ln C and by ln S."""
        compute, sync = self._log_parts(state)
        steps = predicted[: len(self._rows.placements)]
        by_compute = (log_step(state.unknowns, self._rows, compute + _DIFFERENCE, sync) - steps) / _DIFFERENCE
        by_sync = (log_step(state.unknowns, self._rows, compute, sync + _DIFFERENCE) - steps) / _DIFFERENCE
        by_unknowns = [
            (self._predicted(FitState(state.unknowns + shift, state.compute, state.sync)) - predicted) / _DIFFERENCE
            for shift in _shifts(state.unknowns)
        ]
        by_deviations = np.block(
            [
                [by_compute[:, None] * self._compute_root, by_sync[:, None] * self._sync_root],
                [self._compute_root, np.zeros_like(self._sync_root)],
            ]
        )
        return np.hstack([np.stack(by_unknowns, axis=1), by_deviations]), by_compute, by_sync

    def _towards_prior(self, state: FitState) -> Array:
        return np.concatenate([(PRIOR_MEAN - state.unknowns) / PRIOR_SD**2, -state.compute, -state.sync])

    def _cost(self, state: FitState, predicted: Array, weights: Array) -> float:
        from_prior = ((state.unknowns - PRIOR_MEAN) / PRIOR_SD) ** 2
        misses = weights * (self._target - predicted) ** 2
        return float(misses.sum() + from_prior.sum() + (state.compute**2).sum() + (state.sync**2).sum())


def covariances(one: Questions, other: Questions) -> tuple[Array, Array]:
    """Covariances between the deviations of ln C, and between those of ln S."""
    numbers = {placement: number for number, placement in enumerate(dict.fromkeys(one.placements + other.placements))}
    same = np.equal.outer(
        [numbers[placement] for placement in one.placements], [numbers[placement] for placement in other.placements]
    )
    batches = np.subtract.outer(one.log_batch, other.log_batch)
    squares = [
        np.subtract.outer(np.log(mine), np.log(theirs)) ** 2
        for mine, theirs in ((one.nodes, other.nodes), (one.members, other.members), (one.crowd, other.crowd))
    ]
    likeness = np.exp(-0.5 * sum(squares) / len(squares) / SHAPE_LENGTH**2)
    compute = BATCH_SD**2 * np.exp(-0.5 * (batches / BATCH_LENGTH) ** 2) + LOAD_SD**2 * likeness
    compute += same * NODE_SD**2 * np.exp(-np.abs(batches) / NODE_LENGTH)
    # bytes inside a node take other wires, which say nothing about the network between nodes
    same_network = np.equal.outer(one.across, other.across)
    sync = same_network * SHAPE_SD**2 * likeness
    sync += same * (PLACEMENT_SD**2 + HOUR_SD**2 * np.exp(-np.abs(batches) / HOUR_LENGTH))
    return compute, sync


def _step_variance(by_compute: Array, by_sync: Array) -> Array:
    return np.asarray(STEP_NOISE**2 + (by_compute * COMPUTE_NOISE) ** 2 + (by_sync * SYNC_NOISE) ** 2)


def _scale(slopes: Array, weights: Array, miss: Array, noise: Array, covariance: Array) -> float:
    """The ratio of the rows' leave-one-out errors to their expected size."""
    leverage = weights * ((slopes @ covariance) * slopes).sum(axis=1)
    errors = np.abs(miss) / np.sqrt(noise * np.maximum(1 - leverage, _JITTER))
    ratio = float(np.median(errors)) / _MEDIAN_DEVIATION
    return (_EXPECTED_ROWS + len(miss) * ratio) / (_EXPECTED_ROWS + len(miss))


def _prior_precision(num_rows: int) -> Array:
    return np.concatenate([PRIOR_SD**-2, np.ones(2 * num_rows)])


def _noise_factors() -> Iterator[float]:
    """Factors on the noise in each round: the first guess is poor, so at first no row counts as an outlier."""
    return (max(1.0, _FIRST_NOISE_FACTOR * 0.6**number) for number in range(_ROUNDS))


def _shifts(unknowns: Array) -> Iterator[Array]:
    return iter(_DIFFERENCE * np.eye(len(unknowns)))
