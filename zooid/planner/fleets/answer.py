"""The answer of a fleet search: machines, the local batches of their members, and the time and cost of the run."""

from collections.abc import Sequence

import numpy as np

from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.core.resources.offer import Market
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.fleets.arrays import FleetArrays, FleetTimes
from zooid.planner.front import Ints


class LocalBatch(Record, frozen=True, kw_only=True):
    """The number of members that have the same local batch."""

    num_members: int
    num_samples: int


class Hire(Record, frozen=True, kw_only=True):
    """The machines of one type in a fleet."""

    vm: str
    market: Market = "on_demand"
    num_vms: int
    local_batches: tuple[LocalBatch, ...]
    """The local batches of their members, larger ones first. They differ by at most one grain."""


class Fleet(Record, frozen=True, kw_only=True):
    """Machines with local batches, and the time and cost of the run on them."""

    hires: tuple[Hire, ...]
    num_members: int
    compute_s: float
    """The mean compute time of the slowest member in a step."""
    all_reduce_s: float
    step_s: float
    run_s: float
    """The expected time of the run, including interruptions."""
    run_usd: float
    interruptions: float
    """The expected number of interruptions."""


class FleetFront(Record, frozen=True, kw_only=True):
    """All fleets that no other dominates in time and cost, fastest first."""

    fleets: tuple[Fleet, ...]
    proof: Proof


def fleets_of(arrays: FleetArrays, counts: Ints) -> tuple[Fleet, ...]:
    """Return the fleets with these numbers of machines, one in each row, with the best split of the batch."""
    if not len(counts):
        return ()
    makespans_s = arrays.makespan_s(counts)
    times = arrays.evaluate(counts, makespans_s)
    return tuple(
        make_fleet(arrays, fleet_counts, _hires(arrays, fleet_counts, float(makespan_s)), times, row)
        for row, (fleet_counts, makespan_s) in enumerate(zip(counts, makespans_s, strict=True))
    )


def make_fleet(arrays: FleetArrays, counts: Ints, hires: Sequence[Hire], times: FleetTimes, row: int) -> Fleet:
    """Return the record of the fleet in one row of `times`."""
    vms = arrays.problem.vms
    per_hour = sum(int(count) * vm.interruptions_per_hour for count, vm in zip(counts, vms, strict=True))
    working_s = arrays.problem.num_steps * float(times.step_s[row])
    return Fleet(
        hires=tuple(hires),
        num_members=int(np.sum(counts * arrays.num_gpus)),
        compute_s=float(times.compute_s[row]),
        all_reduce_s=float(times.exchange_s[row]),
        step_s=float(times.step_s[row]),
        run_s=float(times.run_s[row]),
        run_usd=float(times.usd[row]),
        interruptions=per_hour * working_s / SECONDS_PER_HOUR,
    )


def _hires(arrays: FleetArrays, counts: Ints, makespan_s: float) -> list[Hire]:
    """Split the batch within this makespan. Types with the largest shares are filled first, so others end early."""
    problem = arrays.problem
    members = counts * arrays.num_gpus
    max_grains = arrays.fitting_grains[:, int(np.searchsorted(arrays.makespans_s, makespan_s))]
    unassigned = problem.num_grains - int(np.sum(members * arrays.min_grains))
    grains: dict[int, int] = {}
    for kind in sorted(np.flatnonzero(counts).tolist(), key=lambda kind: -int(max_grains[kind])):
        extra = min(unassigned, int(members[kind] * (max_grains[kind] - arrays.min_grains[kind])))
        grains[kind] = int(members[kind] * arrays.min_grains[kind]) + extra
        unassigned -= extra
    assert unassigned == 0, "the batch must fit within the makespan of its fleet"
    hires = []
    for kind, num_grains in sorted(grains.items()):
        vm, num_members = problem.vms[kind], int(members[kind])
        share, num_larger = divmod(num_grains, num_members)
        batches = [(num_larger, share + 1), (num_members - num_larger, share)]
        local_batches = tuple(
            LocalBatch(num_members=number, num_samples=grains_each * problem.grain_size)
            for number, grains_each in batches
            if number
        )
        hires.append(Hire(vm=vm.name, market=vm.market, num_vms=int(counts[kind]), local_batches=local_batches))
    return hires
