"""Every way to rent, looked at only as far as it can still matter.

Counts of the first types are branched on, those of the last are laid out in one block of tens of thousands of fleets.
A branch is left when nothing in it can be kept, by a bound that holds for each number n of members in it: at most the
n fastest compute, at least the n cheapest are paid, and the types that are certain exchange among n. A member gets
through no more grains a second than at its best share, so that C ≥ grains / Σ rates.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from zooid.planner.fleets.keeping import Keeper
from zooid.planner.fleets.tables import Ints, Tables
from zooid.predictor.equations.array_checks import Array

BLOCK = 40_000
"""Fleets that are laid out at once."""
_CHUNK = 64
"""Branches that are pursued together; after each such number, what was found since counts."""
_CELLS = 1_000_000
"""Numbers of members of branches that are bounded together."""
_EXACT = 1024
"""Fleets of a block whose split of the batch is searched together."""
_BELOW = 1 - 1e-11
"""Bounds stay below what is computed in another order."""


def search(tables: Tables, keeper: Keeper, end_s: float = math.inf) -> float:
    """Offer every fleet that could be kept. Ends early at `end_s` of `time.perf_counter`.

    The least rank that something not looked at could have; infinite when all was looked at.
    """
    usable = [kind for kind, quota in enumerate(tables.quota) if quota > 0]
    most_kinds = tables.problem.most_kinds or len(usable)
    left = math.inf
    # fleets of one type first: what they take and cost ends most branches of the others early
    for size in sorted({1, min(most_kinds, len(usable))} if usable else ()):
        for kinds in combinations(usable, size):
            left = min(left, _Group(tables, keeper, kinds).search(end_s))
    return left


@dataclass(frozen=True, eq=False)
class _Totals:
    """Sums over the types whose counts are known, one row a fleet or a branch."""

    members: Ints
    least: Ints
    most: Ints
    rate: Array
    usd_per_s: Array
    lost: Array
    floor_s: Array

    @classmethod
    def of(cls, tables: Tables, counts: Ints) -> "_Totals":
        members = counts * tables.gpus
        return cls(
            members=members.sum(axis=1),
            least=(members * tables.least).sum(axis=1),
            most=(members * tables.most).sum(axis=1),
            rate=(members * tables.rate).sum(axis=1),
            usd_per_s=(counts * tables.usd_per_s).sum(axis=1),
            lost=(counts * tables.lost).sum(axis=1),
            floor_s=np.where(counts > 0, tables.floor_s, 0.0).max(axis=1),
        )


@dataclass(frozen=True, eq=False)
class _Free:
    """What types whose counts are still open can bring, by their number of members."""

    rate: Array
    usd_per_s: Array
    most: int
    floor_s: float
    reduce_s: Array
    """Of the type that exchanges fastest among so many."""

    @classmethod
    def of(cls, tables: Tables, kinds: tuple[int, ...]) -> "_Free":
        index = np.array(kinds, np.int64)
        members = (tables.quota * tables.gpus)[index]
        rates = np.sort(np.repeat(tables.rate[index], members))[::-1]
        prices = np.sort(np.repeat((tables.usd_per_s / tables.gpus)[index], members))
        known = tables.problem.num_grains
        reduce_s = np.full(tables.reduce_s.shape[1], math.inf)
        for kind in kinds:
            gpus = int(tables.gpus[kind])
            reduce_s[gpus:] = np.minimum(reduce_s[gpus:], tables.reduce_s[kind][gpus:])
        return cls(
            rate=np.concatenate([[0.0], np.cumsum(rates[:known])]),
            usd_per_s=np.concatenate([[0.0], np.cumsum(prices[:known])]),
            most=int(np.sum(members * tables.most[index])),
            floor_s=float(np.min(tables.floor_s[index], initial=math.inf)),
            reduce_s=reduce_s,
        )


class _Group:
    """Fleets of some of the types."""

    def __init__(self, tables: Tables, keeper: Keeper, kinds: tuple[int, ...]) -> None:
        self._tables, self._keeper = tables, keeper
        # the dearest machines first: their number says most about time and cost
        self._kinds = tuple(sorted(kinds, key=lambda kind: -float(tables.usd_per_s[kind])))
        self._depth = len(kinds)
        size = 1
        while self._depth > 0 and size * (int(tables.quota[self._kinds[self._depth - 1]]) + 1) <= BLOCK:
            self._depth -= 1
            size *= int(tables.quota[self._kinds[self._depth]]) + 1
        self._tail = self._expand(np.zeros((1, len(tables.quota)), np.int64), self._kinds[self._depth :])
        self._tail_totals = _Totals.of(tables, self._tail)
        self._free = [_Free.of(tables, self._kinds[depth:]) for depth in range(self._depth + 1)]

    def search(self, end_s: float) -> float:
        stack = [(0, np.zeros((1, self._tail.shape[1]), np.int64))]
        left = math.inf
        while stack:
            depth, branches = stack.pop()
            ranks, branches = self._worthwhile(depth, branches)
            if not len(branches):
                continue
            if time.perf_counter() > end_s:
                left = min(left, float(ranks[0]))
            elif depth == self._depth:
                for branch in branches:
                    self._look_at(branch)
            else:
                _, children = self._worthwhile(depth + 1, self._expand(branches, self._kinds[depth : depth + 1]))
                chunks = [children[at : at + _CHUNK] for at in range(0, len(children), _CHUNK)]
                stack += [(depth + 1, chunk) for chunk in reversed(chunks)]
        return left

    def _expand(self, branches: Ints, kinds: tuple[int, ...]) -> Ints:
        """With every count of these types."""
        for kind in kinds:
            counts = np.arange(int(self._tables.quota[kind]) + 1)
            branches = np.repeat(branches, len(counts), axis=0)
            branches[:, kind] = np.tile(counts, len(branches) // len(counts))
        return branches

    def _worthwhile(self, depth: int, branches: Ints) -> tuple[Array, Ints]:
        """Branches in which something may be kept, the most promising first, with their ranks."""
        free, total = self._free[depth], self._tables.problem.num_grains
        fixed = _Totals.of(self._tables, branches)
        branches = branches[(fixed.least <= total) & (fixed.most + free.most >= total)]
        if not len(branches):
            return np.zeros(0), branches
        together = max(1, _CELLS // len(free.rate))
        ranks = np.concatenate(
            [self._ranks(depth, branches[at : at + together]) for at in range(0, len(branches), together)]
        )
        order = np.argsort(ranks, kind="stable")[: int(np.isfinite(ranks).sum())]
        return ranks[order], branches[order]

    def _ranks(self, depth: int, branches: Ints) -> Array:
        """The least rank that something in each branch can have; infinite where nothing can be kept."""
        tables, free = self._tables, self._free[depth]
        total = tables.problem.num_grains
        fixed = _Totals.of(tables, branches)
        number = fixed.members[:, None] + np.arange(len(free.rate))
        exists = (number >= 1) & (number < len(tables.waiting))
        number = np.where(exists, number, 1)
        is_open = fixed.members[:, None] == 0
        with np.errstate(divide="ignore"):
            compute_s = total / (fixed.rate[:, None] + free.rate)
        compute_s = np.maximum(compute_s, np.where(is_open, free.floor_s, fixed.floor_s[:, None]))
        exchange_s = np.where(is_open, free.reduce_s[number], 0.0)
        for kind in self._kinds[:depth]:
            present = branches[:, kind, None] > 0
            exchange_s = np.maximum(exchange_s, np.where(present, tables.reduce_s[kind][number], 0.0))
        exists &= np.isfinite(compute_s) & np.isfinite(exchange_s)
        compute_s, exchange_s = np.where(exists, compute_s, 0.0), np.where(exists, exchange_s, 0.0)
        run_s = _BELOW * tables.run_s(tables.step_s(compute_s, number, exchange_s), fixed.lost[:, None])
        usd = _BELOW * run_s * (fixed.usd_per_s[:, None] + free.usd_per_s)
        exists &= self._keeper.worth(run_s, usd)
        ranks: Array = np.where(exists, self._keeper.rank(run_s, usd), math.inf).min(axis=1)
        return ranks

    def _look_at(self, branch: Ints) -> None:
        """Everything in the block behind a branch."""
        tables, keeper = self._tables, self._keeper
        for rows in self._promising(branch):
            counts = self._tail[rows] + branch
            run_s, usd = self._bounds(counts)
            worth = keeper.worth(run_s, usd)
            counts = counts[worth]
            if len(counts):
                exact = tables.evaluate(counts, tables.makespan_s(counts))
                keeper.offer(counts, exact.run_s, exact.usd)

    def _promising(self, branch: Ints) -> Iterator[Ints]:
        """Rows of the block that can hold the batch, in chunks, those with the best bounds first."""
        tables, tail = self._tables, self._tail_totals
        total = tables.problem.num_grains
        one = _Totals.of(tables, branch[None])
        members = tail.members + one.members
        rows = np.flatnonzero((members >= 1) & (tail.least + one.least <= total) & (tail.most + one.most >= total))
        if not len(rows):
            return
        compute_s = np.maximum(total / (tail.rate[rows] + one.rate), np.maximum(tail.floor_s[rows], one.floor_s))
        step_s = tables.step_s(compute_s, members[rows], np.zeros(len(rows)))
        run_s = _BELOW * tables.run_s(step_s, tail.lost[rows] + one.lost)
        usd = _BELOW * run_s * (tail.usd_per_s[rows] + one.usd_per_s)
        rows = rows[self._keeper.worth(run_s, usd)]
        if not len(rows):
            return
        run_s, usd = self._bounds(self._tail[rows] + branch)
        worth = self._keeper.worth(run_s, usd)
        rows = rows[worth][np.argsort(self._keeper.rank(run_s, usd)[worth], kind="stable")]
        for at in range(0, len(rows), _EXACT):
            yield rows[at : at + _EXACT]

    def _bounds(self, counts: Ints) -> tuple[Array, Array]:
        """Of fleets whose counts are all known: only the split of the batch is not."""
        tables = self._tables
        totals = _Totals.of(tables, counts)
        compute_s = np.maximum(tables.problem.num_grains / totals.rate, totals.floor_s)
        exact = tables.evaluate(counts, compute_s)
        return _BELOW * exact.run_s, _BELOW * exact.usd
