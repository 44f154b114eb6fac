"""A fleet problem as arrays: what every share takes on every type, and every all-reduce that can occur.

Step times are evaluated for tens of thousands of fleets at once, and the same way for a single one, so that a fleet
never has two times that differ in their last digit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zooid.core.errors import InputError
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.fleets.problem import FleetProblem, VmType
from zooid.predictor.equations import overlapped_step_s, ring_s
from zooid.predictor.equations.array_checks import Array

Ints: TypeAlias = NDArray[np.signedinteger[Any]]
AllReduceOfVm: TypeAlias = Callable[[int, VmType], float]
"""Seconds among so many members, all on machines of this type; on one machine where they are at most its GPUs."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Columns are types, in the problem's order; shares are counted in grains."""

    problem: FleetProblem
    quota: Ints
    """At most as many as the batch has work for."""
    gpus: Ints
    usd_per_s: Array
    lost: Array
    """What one machine adds to every second, expected: interruptions × (restart + lost work)."""
    least: Ints
    most: Ints
    """Grains of one member; less than `least` for a type that cannot be used."""
    floor_s: Array
    """Computing of the least share."""
    rate: Array
    """Grains a second of one member, at its best share."""
    makespans_s: Array
    """Everything that a member's computing can take, rising."""
    fitting: Ints
    """[type, makespan]: the largest share within it."""
    reduce_s: Array
    """[type, members]."""
    waiting: Array
    """[members]: 1 + σ m(n)."""

    @classmethod
    def of(cls, problem: FleetProblem, all_reduce_s: AllReduceOfVm | None = None, *, num_members: int = 0) -> "Tables":
        """For fleets within the quotas, and others of up to `num_members`."""
        total, size = problem.num_grains, problem.grain_size
        least = np.array([-(-vm.least_samples // size) for vm in problem.vms])
        room = [total if vm.most_samples is None else vm.most_samples // size for vm in problem.vms]
        most = np.minimum(room, total)
        gpus = np.array([vm.num_gpus for vm in problem.vms])
        quota = np.array([vm.quota for vm in problem.vms])
        quota = np.where(most >= least, np.minimum(quota, total // (least * gpus)), 0)
        shares = [np.arange(low, high + 1) for low, high in zip(least, most, strict=True)]
        taken = [vm.compute_s(share * size) for vm, share in zip(problem.vms, shares, strict=True)]
        makespans_s: Array = np.unique(np.concatenate(taken))
        fitting = np.array(
            [
                np.where(within > 0, low - 1 + within, 0)
                for low, times in zip(least, taken, strict=True)
                for within in [np.searchsorted(times, makespans_s, side="right")]
            ],
            dtype=np.int64,
        )
        most_members = max(min(int(np.sum(quota * gpus)), total), num_members)
        return cls(
            problem=problem,
            quota=quota,
            gpus=gpus,
            usd_per_s=np.array([vm.usd_per_hour for vm in problem.vms]) / SECONDS_PER_HOUR,
            lost=np.array(
                [vm.interruptions_per_hour * (vm.restart_s + problem.lost_s) / SECONDS_PER_HOUR for vm in problem.vms]
            ),
            least=least,
            most=most,
            floor_s=np.array([times[0] if len(times) else np.inf for times in taken]),
            rate=np.array([np.max(share / times, initial=0.0) for share, times in zip(shares, taken, strict=True)]),
            makespans_s=makespans_s,
            fitting=fitting,
            reduce_s=_all_reduces(problem, most_members, all_reduce_s),
            waiting=np.array([1 + problem.compute_spread * mean_of_largest(n) for n in range(most_members + 1)]),
        )

    def exchange_s(self, counts: Ints, members: Ints) -> Array:
        """The slowest type of each fleet governs; rows of `counts` are fleets."""
        exchange: Array = np.zeros(len(counts))
        for kind, reduce_s in enumerate(self.reduce_s):
            np.maximum(exchange, np.where(counts[:, kind] > 0, reduce_s[members], 0.0), out=exchange)
        return exchange

    def makespan_s(self, counts: Ints) -> Array:
        """The least that the longest computing takes, of fleets that can hold the batch: no split is better.

        Within a makespan every member takes its largest share; the batch fits if these sum to it or more, and then
        some can take less. Makespans that exist are searched by halves.
        """
        members = counts * self.gpus
        floor_s = np.where(counts > 0, self.floor_s, 0.0).max(axis=1)
        low = np.searchsorted(self.makespans_s, floor_s)
        high = np.full(len(counts), len(self.makespans_s) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            fits = (members * self.fitting[:, middle].T).sum(axis=1) >= self.problem.num_grains
            high = np.where(fits, middle, high)
            low = np.where(fits, low, np.minimum(middle + 1, high))
        found: Array = self.makespans_s[low]
        return found

    def step_s(self, compute_s: Array, members: Ints, exchange_s: Array) -> Array:
        waited = compute_s * self.waiting[members]
        overlap = self.problem.overlap
        return overlapped_step_s((1 - overlap) * waited, overlap * waited, exchange_s)

    def run_s(self, step_s: Array, lost: Array) -> Array:
        return self.problem.num_steps * step_s * (1 + lost)

    def evaluate(self, counts: Ints, compute_s: Array) -> "Evaluated":
        """Fleets whose longest computing is known."""
        members = self.sums(counts, self.gpus)
        exchange_s = self.exchange_s(counts, members)
        step_s = self.step_s(compute_s, members, exchange_s)
        run_s = self.run_s(step_s, self.sums(counts, self.lost))
        return Evaluated(compute_s, exchange_s, step_s, run_s, run_s * self.sums(counts, self.usd_per_s))

    def sums(self, counts: Ints, column: NDArray[Any]) -> NDArray[Any]:
        """Σ over types, always in the same order."""
        total: NDArray[Any] = counts[:, 0] * column[0]
        for kind in range(1, counts.shape[1]):
            total = total + counts[:, kind] * column[kind]
        return total


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One number for each fleet."""

    compute_s: Array
    exchange_s: Array
    step_s: Array
    run_s: Array
    usd: Array


def mean_of_largest(num: int) -> float:
    """Of so many standard normal deviates, by Blom's approximation."""
    return 0.0 if num < 2 else NormalDist().inv_cdf((num - 0.375) / (num + 0.25))


def _all_reduces(problem: FleetProblem, most_members: int, all_reduce_s: AllReduceOfVm | None) -> Array:
    numbers = np.arange(1, most_members + 1)
    table: Array = np.zeros((len(problem.vms), most_members + 1))
    for row, vm in zip(table, problem.vms, strict=True):
        if all_reduce_s is None:
            inside = vm.inside_bytes_per_s or vm.bytes_per_s
            rates = np.where(numbers <= vm.num_gpus, inside, min(inside, vm.bytes_per_s))
            row[1:] = ring_s(problem.gradient_bytes, numbers, rates, problem.latency_s)
        else:
            row[1:] = [all_reduce_s(int(number), vm) for number in numbers]
        if not (np.isfinite(row) & (row >= 0)).all():
            wrong = int(np.argmin(np.isfinite(row) & (row >= 0)))
            raise InputError(
                f"`all_reduce_s` says {row[wrong]} s for {wrong} members on {vm.name}; it must be finite and at least 0"
            )
    return table
