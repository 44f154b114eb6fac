"""The fastest GPUs, each with the same usual batch; where they are too few, with the largest (Srifty §5.1, FGF)."""

from collections.abc import Sequence

from benchmarks.baselines.packing import pack
from zooid.planner.fleets import FleetProblem, Hire, VmType

USUAL_SAMPLES = 64


def fastest_gpu_first(problem: FleetProblem, order: Sequence[str] = ()) -> list[Hire] | None:
    """`order` names the types from the fastest on, where that is known otherwise than from what was measured."""

    def samples_per_s(vm: VmType) -> float:
        return vm.compute[-1].num_samples / vm.compute[-1].compute_s

    vms = sorted(problem.vms, key=lambda vm: order.index(vm.name) if order else -samples_per_s(vm))
    return pack(problem, vms, USUAL_SAMPLES) or pack(problem, vms)
