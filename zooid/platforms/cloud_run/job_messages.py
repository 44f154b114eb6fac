"""The job of a member: one task, started once, which gets exactly the size of its offer."""

import math
from typing import Any

from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.platforms.cloud_run.run_project import RunProject
from zooid.platforms.provider import MemberOrder, start_command

_LIFETIME_MARGIN_S = 60
"""Seconds that Cloud Run adds to a member's lifetime, within which the member ends by itself and records that."""
_MAX_S = 168 * SECONDS_PER_HOUR
_MAX_GPU_S = 1 * SECONDS_PER_HOUR
"""The longest time-outs of tasks, without and with a GPU."""
_ACCELERATORS = {"L4": "nvidia-l4"}
"""Cloud Run's names for GPUs."""
_MIB = 2**20
_MEMORY_MIB: dict[float, tuple[int, int]] = {
    1: (512, 4096),
    2: (512, 8192),
    4: (2048, 16384),
    6: (4096, 24576),
    8: (4096, 32768),
}
"""The least and the most memory by the vCPUs, which jobs have in these numbers only."""
_GPU_LEAST = (4, 16384)
"""The least vCPUs and MiB of memory beside an L4."""


def job_message(order: MemberOrder, project: RunProject, types: Any) -> Any:
    """Return the job of a member; `types` is the module with the messages of Cloud Run."""
    offer = order.offer
    container = types.Container(
        image=project.image,
        command=start_command(project.python),
        env=[types.EnvVar(name=name, value=value) for name, value in order.environment.items()],
        resources=types.ResourceRequirements(limits=limits_of(offer)),
    )
    task = types.TaskTemplate(
        containers=[container],
        max_retries=0,
        timeout={"seconds": timeout_s(offer, order.lifetime_s)},
        service_account=project.service_account,
    )
    if offer.num_gpus:
        task.node_selector = types.NodeSelector(accelerator=_accelerator(offer))
        task.gpu_zonal_redundancy_disabled = True  # the offer's price is the one without
    template = types.ExecutionTemplate(task_count=1, parallelism=1, template=task)
    return types.Job(template=template, labels={"managed-by": "zooid", "zooid-run": order.run})


def limits_of(offer: Offer) -> dict[str, str]:
    """Return the resources of a member; InputError for a size that Cloud Run does not have."""
    _require_size(offer)
    limits = {"cpu": f"{offer.vcpus:g}", "memory": f"{offer.memory_bytes // _MIB}Mi"}
    return limits | ({"nvidia.com/gpu": str(offer.num_gpus)} if offer.num_gpus else {})


def _require_size(offer: Offer) -> None:
    if offer.memory_bytes % _MIB:
        raise InputError(
            f"{offer.name} has {offer.memory_bytes} bytes of memory; Cloud Run takes whole MiB: multiples of {_MIB}"
        )
    least_mib, most_mib = _MEMORY_MIB.get(offer.vcpus, (0, 0))
    if not least_mib <= offer.memory_bytes // _MIB <= most_mib:
        sizes = ", ".join(f"{vcpus} with {least} to {most} MiB" for vcpus, (least, most) in _MEMORY_MIB.items())
        raise InputError(
            f"{offer.name} has {offer.vcpus:g} vCPUs and {offer.memory_bytes // _MIB} MiB of memory; a job of Cloud "
            f"Run may have these vCPUs: {sizes}"
        )
    if offer.num_gpus:
        least_vcpus, least_mib = _GPU_LEAST
        if offer.vcpus < least_vcpus or offer.memory_bytes // _MIB < least_mib:
            raise InputError(
                f"{offer.name} has {offer.vcpus:g} vCPUs and {offer.memory_bytes // _MIB} MiB of memory; a job of "
                f"Cloud Run with a GPU needs at least {least_vcpus} vCPUs and {least_mib} MiB"
            )


def timeout_s(offer: Offer, lifetime_s: float | None) -> int:
    """Return the time-out of a member's task: its lifetime and a margin, as far as Cloud Run allows.

    >>> timeout_s(Offer(name="a", platform="cloud_run", kind="container", market="on_demand", region="r", site="s",
    ...     vcpus=1, memory_bytes=2**30, usd_per_hour=0, source="", date=""), 90.5)
    151
    """
    longest_s = _MAX_GPU_S if offer.num_gpus else _MAX_S
    return int(longest_s if lifetime_s is None else min(longest_s, math.ceil(lifetime_s) + _LIFETIME_MARGIN_S))


def _accelerator(offer: Offer) -> str:
    if offer.gpu not in _ACCELERATORS or offer.num_gpus != 1:
        raise InputError(
            f"{offer.name} has {offer.num_gpus} {offer.gpu}; a member on Cloud Run gets one of "
            f"{', '.join(_ACCELERATORS)}"
        )
    return _ACCELERATORS[offer.gpu]
