"""A fleet: what is rented, who computes how much, and what the run takes and costs on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zooid.core.errors import InputError
from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.core.resources.offer import Market
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.fleets.problem import FleetProblem
from zooid.planner.fleets.shortfall import Shortfall
from zooid.planner.fleets.tables import AllReduceOfVm, Evaluated, Tables


class Share(Record, frozen=True, kw_only=True):
    """So many members with the same local batch."""

    num_members: int
    num_samples: int


class Hire(Record, frozen=True, kw_only=True):
    """Machines of one type."""

    vm: str
    market: Market = "on_demand"
    num_vms: int
    shares: tuple[Share, ...]
    """Of their members, larger local batches first; they differ by one grain at most."""

    def __str__(self) -> str:
        return f"{self.num_vms} {self.vm}@{'/'.join(str(share.num_samples) for share in self.shares)}"


class Fleet(Record, frozen=True, kw_only=True):
    """Machines with their shares of the batch, and what follows from them."""

    hires: tuple[Hire, ...]
    num_members: int
    compute_s: float
    """Of the member that takes longest, on average."""
    all_reduce_s: float
    step_s: float
    run_s: float
    """Expected, with what interruptions cost."""
    run_usd: float
    interruptions: float
    """Expected number of them."""

    def __str__(self) -> str:
        return " + ".join(str(hire) for hire in self.hires)


class FleetAnswer(Record, frozen=True, kw_only=True):
    """The best fleet, or what stands in its way; and how sure that is."""

    best: Fleet | None
    others: tuple[Fleet, ...] = ()
    """The next best ones, as many as were asked for."""
    shortfall: Shortfall | None = None
    """Where no fleet meets the limits."""
    proof: Proof


class FleetFront(Record, frozen=True, kw_only=True):
    """All fleets within the limits to which no other is both faster and cheaper; the fastest first."""

    fleets: tuple[Fleet, ...]
    proof: Proof


def appraise(problem: FleetProblem, hires: Sequence[Hire], all_reduce_s: AllReduceOfVm | None = None) -> Fleet:
    """What a run takes and costs on a fleet that was chosen by somebody else; quotas and limits are not checked."""
    kinds = {(vm.name, vm.market): kind for kind, vm in enumerate(problem.vms)}
    counts = np.zeros((1, len(kinds)), np.int64)
    compute_s = 0.0
    for hire in hires:
        if (hire.vm, hire.market) not in kinds:
            raise InputError(f"{hire.vm} ({hire.market}) is none of the problem's types; give one of {sorted(kinds)}")
        kind = kinds[hire.vm, hire.market]
        vm = problem.vms[kind]
        counts[0, kind] += hire.num_vms
        if sum(share.num_members for share in hire.shares) != hire.num_vms * vm.num_gpus:
            raise InputError(f"{hire} must have one share for each of its {hire.num_vms * vm.num_gpus} GPUs")
        compute_s = max(compute_s, *(float(vm.compute_s(share.num_samples)) for share in hire.shares))
    total = sum(share.num_members * share.num_samples for hire in hires for share in hire.shares)
    if total != problem.batch_size:
        raise InputError(f"local batches sum to {total}; they must sum to the batch, {problem.batch_size}")
    tables = Tables.of(problem, all_reduce_s, num_members=int(np.sum(counts * [vm.num_gpus for vm in problem.vms])))
    return make_fleet(tables, counts[0], hires, tables.evaluate(counts, np.array([compute_s])), 0)


def make_fleet(tables: Tables, counts: NDArray[Any], hires: Sequence[Hire], evaluated: Evaluated, row: int) -> Fleet:
    run_s = float(evaluated.run_s[row])
    per_hour = sum(int(count) * vm.interruptions_per_hour for count, vm in zip(counts, tables.problem.vms, strict=True))
    working_s = tables.problem.num_steps * float(evaluated.step_s[row])
    return Fleet(
        hires=tuple(hires),
        num_members=int(np.sum(counts * tables.gpus)),
        compute_s=float(evaluated.compute_s[row]),
        all_reduce_s=float(evaluated.exchange_s[row]),
        step_s=float(evaluated.step_s[row]),
        run_s=run_s,
        run_usd=float(evaluated.usd[row]),
        interruptions=per_hour * working_s / SECONDS_PER_HOUR,
    )


def share_out(tables: Tables, counts: NDArray[Any], compute_s: float) -> list[Hire]:
    """Local batches within this makespan. Types that can take most take all they can, so that the others are early."""
    problem = tables.problem
    members = counts * tables.gpus
    fitting = tables.fitting[:, int(np.searchsorted(tables.makespans_s, compute_s))]
    rest = problem.num_grains - int(np.sum(members * tables.least))
    grains: dict[int, int] = {}
    for kind in sorted(np.flatnonzero(counts).tolist(), key=lambda kind: -int(fitting[kind])):
        more = min(rest, int(members[kind] * (fitting[kind] - tables.least[kind])))
        grains[kind] = int(members[kind] * tables.least[kind]) + more
        rest -= more
    assert rest == 0, "a fleet that holds the batch within its makespan"
    hires = []
    for kind, total in sorted(grains.items()):
        each, ahead = divmod(total, int(members[kind]))
        shares = [(ahead, each + 1), (int(members[kind]) - ahead, each)]
        hires.append(
            Hire(
                vm=problem.vms[kind].name,
                market=problem.vms[kind].market,
                num_vms=int(counts[kind]),
                shares=tuple(
                    Share(num_members=number, num_samples=grain * problem.grain_size)
                    for number, grain in shares
                    if number
                ),
            )
        )
    return hires
