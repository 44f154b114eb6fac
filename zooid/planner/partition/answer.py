"""The best partition into one number of stages, while it is searched for and when it is found."""

import numpy as np

from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.planner.front import Ints
from zooid.planner.partition.problem import Partition, StageTable, partition_of

ROUNDING = 1e-12
"""A step time that is better by a smaller fraction does not count as better."""


class BestPartition(Record, frozen=True, kw_only=True):
    """The best partition into one number of stages."""

    partition: Partition
    step_s: float
    runners_up: tuple[Partition, ...]
    """Further good partitions, best first. The search met them, or they differ from the best by one layer."""
    proof: Proof


class Incumbents:
    """The best partitions found so far into one number of stages."""

    def __init__(self, table: StageTable, max_kept: int) -> None:
        self._table = table
        self.max_kept = max_kept
        self._steps_s: dict[Partition, float] = {}
        self._lower_bound_s = 0.0

    def add(self, ends: Ints) -> None:
        self._steps_s[partition_of(ends)] = float(self._table.step_s(ends))
        if len(self._steps_s) > 4 * self.max_kept:
            self._steps_s = dict(self._ranked()[: self.max_kept])

    @property
    def best_s(self) -> float:
        return min(self._steps_s.values())

    @property
    def prune_s(self) -> float:
        """A partition whose lower bound is not below this is pruned."""
        return self.best_s * (1 - ROUNDING)

    @property
    def is_proven(self) -> bool:
        return self._lower_bound_s >= self.prune_s

    def raise_lower_bound(self, bound_s: float) -> None:
        """Note that no partition takes less than `bound_s`, except perhaps the incumbent."""
        self._lower_bound_s = max(self._lower_bound_s, min(bound_s, self.best_s))

    def answer(self, wall_s: float) -> BestPartition:
        if self.max_kept > 1:
            self._add_neighbours()
        (best, step_s), *others = self._ranked()[: self.max_kept]
        proof = Proof(
            status="optimal" if self.is_proven else "bounded",
            gap=0.0 if self.is_proven else (step_s - self._lower_bound_s) / step_s,
            wall_s=wall_s,
        )
        return BestPartition(partition=best, step_s=step_s, runners_up=tuple(cuts for cuts, _ in others), proof=proof)

    def _add_neighbours(self) -> None:
        """Add the partitions in which one cut of the best is moved by one layer."""
        best = np.array([end for _, end in self._ranked()[0][0]])
        moves = np.concatenate([np.eye(len(best), dtype=np.int64)[:-1] * step for step in (-1, 1)])
        ends = best + moves
        ends = ends[(np.diff(ends, axis=-1, prepend=0) > 0).all(axis=-1)]
        for neighbour, step_s in zip(ends, self._table.step_s(ends).tolist(), strict=True):
            if np.isfinite(step_s):
                self._steps_s[partition_of(neighbour)] = step_s

    def _ranked(self) -> list[tuple[Partition, float]]:
        return sorted(self._steps_s.items(), key=lambda item: item[1])
