"""Srifty's closed form for a fleet that was chosen by somebody else."""

from collections.abc import Sequence

import numpy as np

from zooid.core.errors import InputError
from zooid.planner.fleets import AllReduceOfVm, Fleet, FleetProblem, Hire
from zooid.planner.fleets.answer import make_fleet
from zooid.planner.fleets.arrays import FleetArrays


def appraise(problem: FleetProblem, hires: Sequence[Hire], all_reduce_s: AllReduceOfVm | None = None) -> Fleet:
    """Return the time and cost of a run on machines within the quotas, with the given local batches."""
    kinds = {(vm.name, vm.market): kind for kind, vm in enumerate(problem.vms)}
    counts = np.zeros((1, len(kinds)), np.int64)
    compute_s = 0.0
    for hire in hires:
        kind = kinds[hire.vm, hire.market]
        counts[0, kind] += hire.num_vms
        for batch in hire.local_batches:
            compute_s = max(compute_s, float(problem.vms[kind].compute_s(batch.num_samples)))
    total = sum(batch.num_members * batch.num_samples for hire in hires for batch in hire.local_batches)
    if total != problem.batch_size:
        raise InputError(f"local batches sum to {total}; they must sum to the batch, {problem.batch_size}")
    arrays = FleetArrays.of(problem, all_reduce_s)
    return make_fleet(arrays, counts[0], hires, arrays.evaluate(counts, np.array([compute_s])), 0)
