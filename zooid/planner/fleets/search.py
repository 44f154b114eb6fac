"""Branch and bound over the number of machines of each type.

The search branches on the counts of the first types. All counts of the last types form one block of tens of thousands
of fleets, which are bounded together. A branch is pruned when its lower bounds cannot improve the front.
"""

import math
import time

import numpy as np

from zooid.planner.fleets.answer import FleetFront, fleets_of
from zooid.planner.fleets.arrays import AllReduceOfVm, FleetArrays
from zooid.planner.fleets.bounds import KnownTotals, OpenTypes, branch_bounds, compute_bounds, fleet_bounds
from zooid.planner.fleets.problem import FleetProblem
from zooid.planner.front import Ints, RunningFront, front_proof
from zooid.predictor.equations.array_checks import Array

BLOCK = 40_000
"""The largest number of fleets in a block."""
_BRANCHES_TOGETHER = 64
"""Branches that are searched together; a smaller number lets new incumbents prune earlier."""
_MAX_CELLS = 1_000_000
"""The largest array of bounds, in branches × numbers of members."""
_FLEETS_TOGETHER = 1024
"""Fleets of a block that are evaluated together."""


def fleet_front(
    problem: FleetProblem, *, all_reduce_s: AllReduceOfVm | None = None, limit_s: float = math.inf
) -> FleetFront:
    """Return every fleet that no other dominates in time and cost.

    The all-reduce is a ring over `gradient_bytes` unless `all_reduce_s` is given. A search that exceeds `limit_s`
    returns the front that it has found, and its proof says so.
    """
    start_s = time.perf_counter()
    arrays, front = FleetArrays.of(problem, all_reduce_s), RunningFront(len(problem.vms))
    usable = tuple(kind for kind, quota in enumerate(arrays.quota) if quota > 0)
    # fleets of one type come first: they are incumbents that prune most mixed fleets
    groups = [(kind,) for kind in usable] + ([usable] if len(usable) > 1 else [])
    is_complete = all(_Branches(arrays, front, kinds).search(start_s + limit_s) for kinds in groups)
    return FleetFront(fleets=fleets_of(arrays, front.rows), proof=front_proof(start_s, is_complete=is_complete))


class _Branches:
    """The search among fleets of some types."""

    def __init__(self, arrays: FleetArrays, front: RunningFront, kinds: tuple[int, ...]) -> None:
        self._arrays, self._front = arrays, front
        # the most expensive machines first: their number says most about time and cost
        self._kinds = tuple(sorted(kinds, key=lambda kind: -float(arrays.usd_per_s[kind])))
        self._depth = len(kinds)
        block_size = 1
        while self._depth > 0 and block_size * (int(arrays.quota[self._kinds[self._depth - 1]]) + 1) <= BLOCK:
            self._depth -= 1
            block_size *= int(arrays.quota[self._kinds[self._depth]]) + 1
        self._block = self._expand(np.zeros((1, len(arrays.quota)), np.int64), self._kinds[self._depth :])
        self._block_totals = KnownTotals.of(arrays, self._block)
        self._open = [OpenTypes.of(arrays, self._kinds[depth:]) for depth in range(self._depth + 1)]

    def search(self, end_s: float) -> bool:
        """Return whether the search was complete at `end_s` of `time.perf_counter`."""
        stack = [(0, np.zeros((1, self._block.shape[1]), np.int64))]
        while stack:
            depth, branches = stack.pop()
            branches = self._promising(depth, branches)
            if not len(branches):
                continue
            if time.perf_counter() > end_s:
                return False
            if depth == self._depth:
                for branch in branches:
                    self._search_block(branch)
            else:
                children = self._promising(depth + 1, self._expand(branches, self._kinds[depth : depth + 1]))
                starts = range(0, len(children), _BRANCHES_TOGETHER)
                chunks = [children[start : start + _BRANCHES_TOGETHER] for start in starts]
                stack += [(depth + 1, chunk) for chunk in reversed(chunks)]
        return True

    def _expand(self, branches: Ints, kinds: tuple[int, ...]) -> Ints:
        """Return each branch with every count of these types."""
        for kind in kinds:
            counts = np.arange(int(self._arrays.quota[kind]) + 1)
            branches = np.repeat(branches, len(counts), axis=0)
            branches[:, kind] = np.tile(counts, len(branches) // len(counts))
        return branches

    def _promising(self, depth: int, branches: Ints) -> Ints:
        """Return the branches that can improve the front, by rising lower bound of their time."""
        rest, num_grains = self._open[depth], self._arrays.problem.num_grains
        known = KnownTotals.of(self._arrays, branches)
        branches = branches[(known.min_grains <= num_grains) & (known.max_grains + rest.max_grains >= num_grains)]
        if not len(branches):
            return branches
        together = max(1, _MAX_CELLS // len(rest.grains_per_s))
        starts = range(0, len(branches), together)
        min_run_s = np.concatenate([self._min_run_s(depth, branches[start : start + together]) for start in starts])
        order = np.argsort(min_run_s, kind="stable")[: int(np.isfinite(min_run_s).sum())]
        return branches[order]

    def _min_run_s(self, depth: int, branches: Ints) -> Array:
        """Return a lower bound of the time of fleets that can improve the front; infinite where there are none."""
        run_s, usd, exists = branch_bounds(self._arrays, branches, self._kinds[:depth], self._open[depth])
        exists &= self._front.can_improve(run_s, usd)
        min_run_s: Array = np.where(exists, run_s, math.inf).min(axis=1)
        return min_run_s

    def _search_block(self, branch: Ints) -> None:
        """Add the fleets of one branch to the front, those with the best bounds first."""
        arrays, front, num_grains = self._arrays, self._front, self._arrays.problem.num_grains
        totals = self._block_totals.plus(KnownTotals.of(arrays, branch[None]))
        holds_batch = (totals.min_grains <= num_grains) & (totals.max_grains >= num_grains)
        rows = np.flatnonzero((totals.members >= 1) & holds_batch)
        rows = rows[front.can_improve(*compute_bounds(arrays, totals.take(rows)))]
        counts = self._block[rows] + branch
        run_s, usd = fleet_bounds(arrays, counts)
        rows = np.flatnonzero(front.can_improve(run_s, usd))
        rows = rows[np.argsort(run_s[rows], kind="stable")]
        for start in range(0, len(rows), _FLEETS_TOGETHER):
            chunk = rows[start : start + _FLEETS_TOGETHER]
            chunk = chunk[front.can_improve(run_s[chunk], usd[chunk])]  # the front has improved meanwhile
            times = arrays.evaluate(counts[chunk], arrays.makespan_s(counts[chunk]))
            front.add(counts[chunk], times.run_s, times.usd)
