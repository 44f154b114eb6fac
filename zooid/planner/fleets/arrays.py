"""A fleet problem as arrays: the compute time of every share on every type, and the time of every all-reduce.

Tens of thousands of fleets are evaluated at once, and a single fleet in the same way, so that a fleet never has two
times that differ in their last digit.
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
from zooid.planner.front import Ints
from zooid.predictor.equations import overlapped_step_s, ring_s
from zooid.predictor.equations.array_checks import Array

AllReduceOfVm: TypeAlias = Callable[[int, VmType], float]
"""Returns the seconds of an all-reduce among this many members, all on machines of one type.

Members that fit one machine share it.
"""


@dataclass(frozen=True, eq=False)
class FleetArrays:
    """One number for each type, in the problem's order. Shares are counted in grains."""

    problem: FleetProblem
    quota: Ints
    """The largest useful number of machines: each member needs its smallest share."""
    num_gpus: Ints
    usd_per_s: Array
    lost_fraction: Array
    """The expected fraction that interruptions of one machine add to the run: rate × (restart + lost work)."""
    min_grains: Ints
    """The smallest share of one member."""
    max_grains: Ints
    """The largest share of one member; below `min_grains` for a type that cannot be used."""
    min_compute_s: Array
    """The compute time of the smallest share."""
    grains_per_s: Array
    """The throughput of one member at its best share."""
    makespans_s: Array
    """Every possible compute time of a member, rising."""
    fitting_grains: Ints
    """[type, makespan]: the largest share within the makespan."""
    all_reduce_s: Array
    """[type, number of members]."""
    wait_factor: Array
    """[number of members]: 1 + σ m(n)."""

    @classmethod
    def of(cls, problem: FleetProblem, all_reduce_s: AllReduceOfVm | None = None) -> "FleetArrays":
        num_grains, grain_size = problem.num_grains, problem.grain_size
        min_grains = np.array([-(-vm.min_samples // grain_size) for vm in problem.vms])
        room = [num_grains if vm.max_samples is None else vm.max_samples // grain_size for vm in problem.vms]
        max_grains = np.minimum(room, num_grains)
        num_gpus = np.array([vm.num_gpus for vm in problem.vms])
        quota = np.array([vm.quota for vm in problem.vms])
        quota = np.where(max_grains >= min_grains, np.minimum(quota, num_grains // (min_grains * num_gpus)), 0)
        shares = [np.arange(low, high + 1) for low, high in zip(min_grains, max_grains, strict=True)]
        times_s = [vm.compute_s(share * grain_size) for vm, share in zip(problem.vms, shares, strict=True)]
        makespans_s: Array = np.unique(np.concatenate(times_s))
        num_fitting = [np.searchsorted(times, makespans_s, side="right") for times in times_s]
        max_members = min(int(np.sum(quota * num_gpus)), num_grains)
        return cls(
            problem=problem,
            quota=quota,
            num_gpus=num_gpus,
            usd_per_s=np.array([vm.usd_per_hour for vm in problem.vms]) / SECONDS_PER_HOUR,
            lost_fraction=np.array(
                [vm.interruptions_per_hour * (vm.restart_s + problem.lost_s) / SECONDS_PER_HOUR for vm in problem.vms]
            ),
            min_grains=min_grains,
            max_grains=max_grains,
            min_compute_s=np.array([times[0] if len(times) else np.inf for times in times_s]),
            grains_per_s=np.array(
                [np.max(share / times, initial=0.0) for share, times in zip(shares, times_s, strict=True)]
            ),
            makespans_s=makespans_s,
            fitting_grains=np.array(
                [np.where(number > 0, low - 1 + number, 0) for low, number in zip(min_grains, num_fitting, strict=True)]
            ),
            all_reduce_s=_all_reduces(problem, max_members, all_reduce_s),
            wait_factor=np.array([1 + problem.compute_spread * mean_of_largest(n) for n in range(max_members + 1)]),
        )

    def makespan_s(self, counts: Ints) -> Array:
        """Return the smallest compute time of the slowest member, for fleets that can hold the batch.

        Within a makespan every member takes its largest share, and the batch fits if these sum to at least its size.
        A binary search finds the smallest such makespan.
        """
        members = counts * self.num_gpus
        floor_s = np.where(counts > 0, self.min_compute_s, 0.0).max(axis=1)
        low = np.searchsorted(self.makespans_s, floor_s)
        high = np.full(len(counts), len(self.makespans_s) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            fits = (members * self.fitting_grains[:, middle].T).sum(axis=1) >= self.problem.num_grains
            high = np.where(fits, middle, high)
            low = np.where(fits, low, np.minimum(middle + 1, high))
        makespan_s: Array = self.makespans_s[low]
        return makespan_s

    def step_s(self, compute_s: Array, members: Ints, exchange_s: Array) -> Array:
        waited_s = compute_s * self.wait_factor[members]
        overlap = self.problem.overlap
        return overlapped_step_s((1 - overlap) * waited_s, overlap * waited_s, exchange_s)

    def run_s(self, step_s: Array, lost_fraction: Array) -> Array:
        return self.problem.num_steps * step_s * (1 + lost_fraction)

    def evaluate(self, counts: Ints, compute_s: Array) -> "FleetTimes":
        """Return the times and costs of fleets, one in each row, whose slowest member computes for `compute_s`."""
        members = _summed(counts, self.num_gpus)
        exchange_s: Array = np.zeros(len(counts))
        for kind, reduce_s in enumerate(self.all_reduce_s):  # the slowest type governs
            np.maximum(exchange_s, np.where(counts[:, kind] > 0, reduce_s[members], 0.0), out=exchange_s)
        step_s = self.step_s(compute_s, members, exchange_s)
        run_s = self.run_s(step_s, _summed(counts, self.lost_fraction))
        return FleetTimes(compute_s, exchange_s, step_s, run_s, run_s * _summed(counts, self.usd_per_s))


@dataclass(frozen=True, eq=False)
class FleetTimes:
    """One number for each fleet."""

    compute_s: Array
    exchange_s: Array
    step_s: Array
    run_s: Array
    usd: Array


def mean_of_largest(num: int) -> float:
    """Return the mean of the largest of `num` standard normal deviates, by Blom's approximation."""
    return 0.0 if num < 2 else NormalDist().inv_cdf((num - 0.375) / (num + 0.25))


def _summed(counts: Ints, column: NDArray[Any]) -> NDArray[Any]:
    """Return the weighted sum over types, always in the same order, so that equal fleets get equal digits."""
    total: NDArray[Any] = counts[:, 0] * column[0]
    for kind in range(1, counts.shape[1]):
        total = total + counts[:, kind] * column[kind]
    return total


def _all_reduces(problem: FleetProblem, max_members: int, all_reduce_s: AllReduceOfVm | None) -> Array:
    numbers = np.arange(1, max_members + 1)
    table: Array = np.zeros((len(problem.vms), max_members + 1))
    for row, vm in zip(table, problem.vms, strict=True):
        if all_reduce_s is None:
            inside = vm.inside_bytes_per_s or vm.bytes_per_s
            rates = np.where(numbers <= vm.num_gpus, inside, min(inside, vm.bytes_per_s))
            row[1:] = ring_s(problem.gradient_bytes, numbers, rates, problem.latency_s)
        else:
            row[1:] = [all_reduce_s(int(number), vm) for number in numbers]
        is_valid = np.isfinite(row) & (row >= 0)
        if not is_valid.all():
            wrong = int(np.argmin(is_valid))
            raise InputError(
                f"`all_reduce_s` returned {row[wrong]} s for {wrong} members on {vm.name}; "
                "return a finite number of at least 0"
            )
    return table
