"""Tasks of SkyPilot as its stand-in reads them: the fields in use, checked strictly, and machines by their names."""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_yaml: Any = importlib.import_module("yaml")  # comes with the client of Kubernetes, and has no types
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_FIELDS: dict[str, type] = {"name": str, "resources": dict, "envs": dict, "setup": str, "run": str}
_RESOURCES: dict[str, type] = {
    "infra": str, "instance_type": str, "accelerators": dict, "use_spot": bool, "image_id": str,
}  # fmt: skip


@dataclass(frozen=True)
class MachineType:
    """A machine that can be rented, and what stands for it here."""

    infra: str
    name: str
    usd_per_hour: float
    memory_bytes: int
    """The memory of its sandbox, which may be a fraction of the machine's."""
    vcpus: float


class WrongTask(Exception):
    """A task that SkyPilot would not accept, or whose machine cannot be rented."""


@dataclass(frozen=True)
class CheckedTask:
    """A task with a machine that exists."""

    name: str
    machine: MachineType
    environment: Mapping[str, str]
    setup: str
    run: str


def checked_task(text: str, machines: Mapping[tuple[str, str], MachineType]) -> CheckedTask:
    """Read a task; `machines` are those that can be rented, by infra and name."""
    try:
        task = _yaml.safe_load(text)
    except _yaml.YAMLError as error:
        raise WrongTask(f"Invalid YAML: {error}") from error
    _check_fields("task", task, _FIELDS)
    resources = task.get("resources", {})
    _check_fields("resources", resources, _RESOURCES)
    for name, value in task.get("envs", {}).items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
            raise WrongTask(f"Invalid envs: {name!r}")
    wanted = (resources.get("infra", ""), resources.get("instance_type", ""))
    if wanted not in machines:
        raise WrongTask(f"Invalid instance type {wanted[1]!r} for cloud {wanted[0]}.")
    if resources.get("accelerators"):
        raise WrongTask(f"{wanted[1]} does not have accelerators.")
    return CheckedTask(
        task["name"], machines[wanted], task.get("envs", {}), task.get("setup", "true"), task.get("run", "true")
    )


def _check_fields(what: str, given: Any, fields: Mapping[str, type]) -> None:
    if not isinstance(given, dict):
        raise WrongTask(f"Invalid {what} YAML: it is no mapping")
    for name, value in given.items():
        if name not in fields:
            raise WrongTask(f"Invalid {what} YAML: found unsupported field {name!r}")
        if not isinstance(value, fields[name]):
            raise WrongTask(f"Invalid {what} YAML: {name!r} is {value!r}")
