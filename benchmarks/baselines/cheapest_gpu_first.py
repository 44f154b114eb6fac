"""The cheapest GPUs, each with the largest batch that fits it (Srifty §5.1, CGF)."""

from benchmarks.baselines.packing import pack
from zooid.planner.fleets import FleetProblem, Hire


def cheapest_gpu_first(problem: FleetProblem) -> list[Hire] | None:
    return pack(problem, sorted(problem.vms, key=lambda vm: vm.usd_per_hour / vm.num_gpus))
