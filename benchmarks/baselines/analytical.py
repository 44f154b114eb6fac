"""Machines as an analytical model sees them (Srifty §2.3, APM): no floor, no latency, no variance, all overlapped.

It shares the optimiser, as in the paper: computing is one straight line in the batch (Nexus), the all-reduce moves its
bytes at the rated bandwidth (Daydream), and a step takes the longer of the two (Cynthia).
"""

import msgspec
import numpy as np

from zooid.planner.fleets import ComputePoint, FleetProblem, VmType


def analytical(problem: FleetProblem) -> FleetProblem:
    """The same question in the model's eyes; its answer may miss the limits when it is appraised by another."""
    vms = tuple(msgspec.structs.replace(vm, compute=_line(vm)) for vm in problem.vms)
    return msgspec.structs.replace(problem, vms=vms, overlap=1.0, latency_s=0.0, compute_spread=0.0)


def _line(vm: VmType) -> tuple[ComputePoint, ...]:
    sizes = np.array([point.num_samples for point in vm.compute], float)
    times = np.array([point.compute_s for point in vm.compute])
    if len(sizes) == 1:
        sizes, times = np.append(sizes, 0.0), np.append(times, 0.0)
    slope, fixed = np.polyfit(sizes, times, 1)
    ends = (1, max(2, int(sizes.max())))
    lowest = float(times[times > 0].min()) * 1e-3  # a steep line may cross 0 above a batch of 1
    return tuple(ComputePoint(num_samples=end, compute_s=max(float(fixed + slope * end), lowest)) for end in ends)
