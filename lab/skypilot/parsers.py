"""A program for the environment of SkyPilot: its own parsers read tasks, command lines and answers.

It reads one JSON object from its standard input, and prints the problems that SkyPilot has with each item. SkyPilot
downloads its lists of machines, which a test must not depend on; so it finds a list of the machines it is asked about.
"""

import csv
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

_COLUMNS = {
    "aws": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,"
    "AvailabilityZone,Arch",
    "azure": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,Generation",
    "gcp": "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,"
    "SpotPrice",
    "lambda": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice",
}
"""The columns of SkyPilot's lists."""


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    printed, sys.stdout = sys.stdout, sys.stderr  # SkyPilot prints what it thinks
    _write_lists(asked["machines"])
    answer = {
        "tasks": [_problem(_check_task, text) for text in asked["tasks"]],
        "command_lines": [_problem(_check_command_line, arguments) for arguments in asked["command_lines"]],
        "answers": [_problem(_check_answer, *each) for each in asked["answers"]],
    }
    json.dump(answer, printed)
    printed.flush()
    os._exit(0)  # threads of SkyPilot would keep it


def _problem(check: Any, *given: Any) -> str:
    try:
        check(*given)
    except Exception as error:  # noqa: BLE001  # whatever SkyPilot raises is its verdict
        return f"{type(error).__name__}: {error}"
    return ""


def _write_lists(machines: list[dict[str, Any]]) -> None:
    """Write the lists of machines where SkyPilot keeps those that it has downloaded."""
    lists = Path.home() / ".sky" / "catalogs" / "v8"
    names = sorted({machine["accelerator"] for machine in machines} - {""})
    (lists / "common").mkdir(parents=True)
    (lists / "common" / "accelerators.csv").write_text(
        "\n".join(["AcceleratorName,Clouds", *(f"{name}," for name in names), ""])
    )
    for cloud, columns in _COLUMNS.items():
        folder = lists / cloud
        folder.mkdir()
        with (folder / "vms.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns.split(","))
            writer.writeheader()
            for machine in machines:
                if machine["cloud"] == cloud:
                    writer.writerows(_rows(machine, columns.split(",")))


def _rows(machine: dict[str, Any], columns: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a machine. Accelerators of Google's N1 machines have rows of their own."""
    row = {
        "InstanceType": machine["instance_type"],
        "AcceleratorName": machine["accelerator"],
        "AcceleratorCount": machine["num_gpus"] or "",
        "vCPUs": machine["vcpus"],
        "MemoryGiB": machine["memory_bytes"] / 2**30,
        "Price": machine["usd_per_hour"],
        "SpotPrice": machine["usd_per_hour"],
        "Region": machine["region"],
        "AvailabilityZone": f"{machine['region']}-a" if machine["cloud"] == "gcp" else "use1-az1",
        "Arch": "x86_64",
        "Generation": "V2",
    }
    rows = [row]
    if machine["cloud"] == "gcp":
        host = {**row, "AcceleratorName": "", "AcceleratorCount": ""}
        rows = [host, {**row, "InstanceType": "", "vCPUs": "", "MemoryGiB": ""}]
    return [{name: value for name, value in each.items() if name in columns} for each in rows]


def _check_task(text: str) -> None:
    sky = importlib.import_module("sky")
    file = Path.home() / "task.yaml"
    file.write_text(text)
    task = sky.Task.from_yaml(str(file))
    task.validate()
    for resources in task.resources:
        resources.validate()
        if not resources.is_launchable() or not resources.get_valid_regions_for_launchable():
            raise ValueError(f"{resources} cannot be launched anywhere")
        _check_accelerators(resources)


def _check_accelerators(resources: Any) -> None:
    """Compare the accelerators of a task with those of its machine, which SkyPilot would take in silence."""
    catalog = importlib.import_module("sky.catalog")
    wanted, machine = resources.accelerators, resources.instance_type
    if str(resources.cloud) == "GCP":
        catalog.check_accelerator_attachable_to_host(machine, wanted, None, "gcp")
        return
    has = catalog.get_accelerators_from_instance_type(machine, str(resources.cloud).lower())
    if wanted != has:
        raise ValueError(f"{machine} has {has}, but the task asks for {wanted}")


def _check_command_line(arguments: list[str]) -> None:
    command: Any = importlib.import_module("sky.client.cli.command").cli
    click = importlib.import_module("click")
    name, rest = "sky", list(arguments)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(click.Context(command), rest)
    command.make_context(name, rest)


def _check_answer(record: str, row: dict[str, Any]) -> None:
    """Read a row that the stand-in has printed with the record of SkyPilot that prints such rows."""
    module, _, name = record.rpartition(".")
    getattr(importlib.import_module(module), name).model_validate(row)


if __name__ == "__main__":
    main()
