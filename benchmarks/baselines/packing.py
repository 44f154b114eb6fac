"""Filling one machine after the other, which is what greedy choices of machines have in common."""

from collections.abc import Iterable

from zooid.planner.fleets import FleetProblem, Hire, LocalBatch, VmType


def pack(problem: FleetProblem, order: Iterable[VmType], max_samples: int | None = None) -> list[Hire] | None:
    """Each GPU with its largest local batch, or with `max_samples`; the last machine with the rest.

    None where all are full.
    """
    left = problem.batch_size
    hires: list[Hire] = []
    for vm in order:
        each = min(size for size in (vm.max_samples, max_samples, problem.batch_size) if size is not None)
        shares: list[int] = []
        num_vms = 0
        while left and num_vms < vm.quota:
            own = min(each * vm.num_gpus, left)
            some, more = divmod(own, vm.num_gpus)
            shares += [some + 1] * more + [some] * (vm.num_gpus - more)
            num_vms, left = num_vms + 1, left - own
        if num_vms:
            sizes = sorted(set(shares), reverse=True)
            counted = tuple(LocalBatch(num_members=shares.count(size), num_samples=size) for size in sizes)
            hires.append(Hire(vm=vm.name, market=vm.market, num_vms=num_vms, local_batches=counted))
    return None if left else hires
