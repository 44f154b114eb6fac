"""Which limit no fleet meets, found by asking again without it, and the nearest limit that some fleet meets."""

from collections.abc import Callable, Iterator

import msgspec

from zooid.planner.fleets.keeping import Anything, Best, Nearest
from zooid.planner.fleets.problem import FleetProblem, VmType
from zooid.planner.fleets.searching import search
from zooid.planner.fleets.shortfall import Change, Shortfall
from zooid.planner.fleets.tables import AllReduceOfVm, Tables

_MOST_MACHINES = 256
"""A quota beyond this is no advice to anybody."""


def explain(problem: FleetProblem, all_reduce_s: AllReduceOfVm | None = None) -> Shortfall:
    """Of a problem for which there is no fleet."""
    asked = _Asked(problem, all_reduce_s)
    unlimited = msgspec.structs.replace(problem, deadline_s=None, budget_usd=None)
    if not asked.is_possible(unlimited):
        return Shortfall(binds=("batch",), changes=(*asked.quotas(), *asked.kinds(), *asked.leasts()))
    time_s = asked.least("fastest", msgspec.structs.replace(problem, deadline_s=None))
    usd = asked.least("cheapest", msgspec.structs.replace(problem, budget_usd=None))
    times = [_change("deadline", problem.deadline_s, time_s)] if time_s is not None and problem.deadline_s else []
    money = [_change("budget", problem.budget_usd, usd)] if usd is not None and problem.budget_usd else []
    if times and money:
        return Shortfall(binds=("deadline", "budget"), is_joint=True, changes=(*times, *money, *asked.quotas()))
    if times or money:
        return Shortfall(binds=("deadline",) if times else ("budget",), changes=(*times, *money, *asked.quotas()))
    quotas = tuple(asked.quotas())
    if quotas:
        return Shortfall(binds=("deadline", "budget"), changes=quotas)
    return Shortfall(binds=("deadline", "budget"), changes=asked.both(), needs_all=True)


class _Asked:
    """Variants of one problem."""

    def __init__(self, problem: FleetProblem, all_reduce_s: AllReduceOfVm | None) -> None:
        self._problem, self._all_reduce_s = problem, all_reduce_s

    def is_possible(self, problem: FleetProblem) -> bool:
        keeper = Anything(problem)
        search(Tables.of(problem, self._all_reduce_s), keeper)
        return bool(keeper.kept)

    def least(self, goal: str, problem: FleetProblem) -> float | None:
        """The least time or cost within the other limit."""
        keeper = Best(msgspec.structs.replace(problem, goal=goal))
        search(Tables.of(problem, self._all_reduce_s), keeper)
        return keeper.kept[0][0] if keeper.kept else None

    def quotas(self) -> Iterator[Change]:
        """For each type, the least quota that is enough, where any is."""
        for at, vm in enumerate(self._problem.vms):
            useful = min(self._problem.batch_size // (vm.num_gpus * vm.least_samples), _MOST_MACHINES)

            def with_quota(quota: int, at: int = at, vm: VmType = vm) -> FleetProblem:
                return self._with(at, msgspec.structs.replace(vm, quota=quota))

            needed = self._first(with_quota, vm.quota, max(useful, vm.quota))
            if needed is not None:
                yield Change(limit="quota", vm=vm.name, given=vm.quota, needed=needed)

    def kinds(self) -> Iterator[Change]:
        given = self._problem.most_kinds
        if given is not None:
            needed = self._first(
                lambda most: msgspec.structs.replace(self._problem, most_kinds=most), given, len(self._problem.vms)
            )
            if needed is not None:
                yield Change(limit="kinds", given=given, needed=needed)

    def leasts(self) -> Iterator[Change]:
        """For each type, the largest of smaller least local batches that is enough."""
        for at, vm in enumerate(self._problem.vms):

            def lowered(by: int, at: int = at, vm: VmType = vm) -> FleetProblem:
                return self._with(at, msgspec.structs.replace(vm, least_samples=vm.least_samples - by))

            by = self._first(lowered, 0, vm.least_samples - 1) if vm.quota else None
            if by is not None:
                yield Change(limit="least_samples", vm=vm.name, given=vm.least_samples, needed=vm.least_samples - by)

    def both(self) -> tuple[Change, ...]:
        """Deadline and budget of the fleet that exceeds them least."""
        problem = self._problem
        keeper = Nearest(problem)
        search(Tables.of(problem, self._all_reduce_s), keeper)
        assert keeper.found is not None, "there are fleets without limits"
        time_s, usd = keeper.found
        return _change("deadline", problem.deadline_s, time_s), _change("budget", problem.budget_usd, usd)

    def _first(self, variant: Callable[[int], FleetProblem], impossible: int, most: int) -> int | None:
        """The first number above `impossible` for which there is a fleet; there is one for all above it, then."""
        if most <= impossible or not self.is_possible(variant(most)):
            return None
        low, high = impossible, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.is_possible(variant(middle)) else (middle, high)
        return high

    def _with(self, at: int, vm: VmType) -> FleetProblem:
        vms = list(self._problem.vms)
        vms[at] = vm
        return msgspec.structs.replace(self._problem, vms=tuple(vms))


def _change(limit: str, given: float | None, needed: float) -> Change:
    assert given is not None
    return Change(limit="deadline" if limit == "deadline" else "budget", given=given, needed=needed)
