"""Hydrozoa's partitioning algorithm as the paper describes it (Appendix A.2): V evenly spaced bounds in each direction.

For every pair of a bound on t_k and one on r_1, a dynamic program finds the partitions within them that communicate the
least, one for each number of stages:

    C(i, j) = min over u of C(i − 1, u) + c_{u+1},   u such that the stage from u to j is within both bounds

Of all pairs' partitions the one with the least runtime (Appendix A.1) is taken. Replicas come afterwards, in
Algorithm 1, and have no influence on where the model is cut.
"""

import numpy as np
from numpy.typing import NDArray

from zooid.planner.partition.problem import Partition, StageTable, partition_of
from zooid.predictor.equations.array_checks import Array

NUM_BOUNDS = 1000
"""The paper's V (Appendix A.3)."""
MOST_CELLS = 4_000_000
"""Of the arrays in memory: pairs of bounds are taken together as far as that goes."""


def grid_partitions(
    table: StageTable, num_bounds: int = NUM_BOUNDS, *, max_stages: int | None = None
) -> dict[int, Partition]:
    """The partition that the grid finds for each number of stages, up to `max_stages` where that is given; none where
    no pair of bounds admits one.

    Bounds between which no stage's time lies admit the same partitions, so of those only the first is tried.
    """
    alone = StageTable(
        forward_s=table.forward_s,
        backward_s=table.backward_s,
        cut_s=table.cut_s,
        num_grains=table.num_grains,
        reduce_s=np.zeros_like(table.reduce_s),
        fits=table.fits,
    )
    forward_s = np.maximum(table.forward_s, table.cut_s)
    backward_s = np.maximum(table.backward_s, table.cut_s)
    within_forward = _distinct(forward_s, _bounds(table, table.forward_s, num_bounds), table.fits)
    within_backward = _distinct(backward_s, _bounds(table, table.backward_s, num_bounds), table.fits)
    best: dict[int, tuple[float, Partition]] = {}
    most = min(max_stages or table.num_layers, table.num_layers)
    at_once = max(1, MOST_CELLS // (table.num_layers + 1) ** 2)
    for forward in within_forward:
        for begin in range(0, len(within_backward), at_once):
            _keep_best(alone, forward & within_backward[begin : begin + at_once], best, most)
    return {count: partition for count, (_, partition) in best.items()}


def _bounds(table: StageTable, times_s: Array, num_bounds: int) -> Array:
    """Evenly spaced over all possible values of t_k (or r_1): from the fastest layer to the whole chain, or to the
    longest message."""
    layers_s = np.diagonal(times_s, 1)
    return np.linspace(layers_s.min(), max(times_s[0, -1], table.cut_s.max()), num_bounds)


def _distinct(times_s: Array, bounds: Array, fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which stages each bound admits, as one array for each bound that admits others than the one before."""
    admitted = (times_s <= bounds[:, None, None]) & fits
    is_new = np.append(True, (admitted[1:] != admitted[:-1]).any(axis=(1, 2)))
    distinct: NDArray[np.bool_] = admitted[is_new]
    return distinct


def _keep_best(
    table: StageTable, admitted: NDArray[np.bool_], best: dict[int, tuple[float, Partition]], max_stages: int
) -> None:
    """The dynamic program for many pairs of bounds at once; the first axis is the pair."""
    num_pairs, num_ends, _ = admitted.shape
    to_send = np.where(admitted, table.cut_s[None, :, None], np.inf)  # a stage from u receives over the cut before it
    least = np.full((num_pairs, num_ends), np.inf)
    least[:, 0] = 0.0
    came_from = []
    for count in range(1, max_stages + 1):
        sent = least[:, :, None] + to_send
        came_from.append(sent.argmin(axis=1))
        least = sent.min(axis=1)
        (found,) = np.nonzero(np.isfinite(least[:, -1]))
        if not len(found):
            continue
        ends = np.full((len(found), count), num_ends - 1)
        for stage in range(count - 1, 0, -1):
            ends[:, stage - 1] = came_from[stage][found, ends[:, stage]]
        steps_s = table.step_s(ends)
        winner = int(steps_s.argmin())
        if count not in best or steps_s[winner] < best[count][0]:
            best[count] = float(steps_s[winner]), partition_of(ends[winner])
