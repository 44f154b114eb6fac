"""What Cloud Run has against a job that is to be created, by its documentation of jobs."""

import re
from collections.abc import Collection

from google.cloud import run_v2

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[-_a-z0-9]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMORY = re.compile(r"([1-9][0-9]*)Mi")
_MEMORY_MIB = {"1": (512, 4096), "2": (512, 8192), "4": (2048, 16384), "6": (4096, 24576), "8": (4096, 32768)}
_GPU, _GPU_CPUS, _GPU_MIB = "nvidia-l4", ("4", "6", "8"), 16384
_MAX_S, _MAX_GPU_S = 168 * 3600, 3600
_MAX_VARIABLE_BYTES = 32 * 1024
_OUTPUT_ONLY = ("name", "uid", "create_time", "update_time", "creator", "conditions", "execution_count", "etag")


def job_problems(name: str, job: run_v2.Job, accounts: Collection[str]) -> list[str]:
    """List what is wrong with a job; `accounts` are the service accounts of the project."""
    found = [f"{field} may not be set" for field in _OUTPUT_ONLY if field in job]
    if _NAME.fullmatch(name) is None:
        found.append(f"job_id: {name!r} must have at most 63 lower-case letters, digits and hyphens")
    found += [
        f"labels: {label}={value} has characters that are not allowed"
        for label, value in job.labels.items()
        if not (label and _LABEL.fullmatch(label) and _LABEL.fullmatch(value))
    ]
    execution = job.template
    if execution.task_count != 1 or execution.parallelism > 1:
        found.append("this endpoint runs one task in an execution")
    template = execution.template
    if len(template.containers) != 1:
        return [*found, "a task needs exactly one container"]
    if template.service_account and template.service_account not in accounts:
        found.append(f"service_account: {template.service_account} does not exist")
    return found + _time_problems(template) + _container_problems(template.containers[0], template)


def _time_problems(template: run_v2.TaskTemplate) -> list[str]:
    longest_s = _MAX_GPU_S if template.node_selector.accelerator else _MAX_S
    if not 0 < template.timeout.total_seconds() <= longest_s:
        return [f"timeout: must be more than 0 and at most {longest_s} seconds"]
    return []


def _container_problems(container: run_v2.Container, template: run_v2.TaskTemplate) -> list[str]:
    found = []
    if not container.image:
        found.append("containers[0].image: must be given")
    if container.ports:
        found.append("containers[0].ports: a job listens on no ports")
    for variable in container.env:
        if _VARIABLE.fullmatch(variable.name) is None or len(variable.value) > _MAX_VARIABLE_BYTES:
            found.append(f"containers[0].env: {variable.name} has a name or a length that is not allowed")
    limits = dict(container.resources.limits)
    gpus, cpus, memory = limits.pop("nvidia.com/gpu", "0"), limits.pop("cpu", ""), limits.pop("memory", "")
    found += [f"resources.limits: {name} is not known" for name in limits]
    least_mib, most_mib = _MEMORY_MIB.get(cpus, (0, 0))
    matched = _MEMORY.fullmatch(memory)
    memory_mib = int(matched[1]) if matched else 0
    if not 0 < least_mib <= memory_mib <= most_mib:
        found.append(f"resources.limits: {cpus or 'no'} cpu with {memory or 'no'} memory is not a size of jobs")
    accelerator = template.node_selector.accelerator
    if (gpus != "0") != bool(accelerator):
        found.append("node_selector.accelerator: must be given with nvidia.com/gpu, and only then")
    elif accelerator and (accelerator != _GPU or gpus != "1" or cpus not in _GPU_CPUS or memory_mib < _GPU_MIB):
        found.append("resources.limits: a task may have one nvidia-l4, with at least 4 cpu and 16Gi of memory")
    return found
