"""The task of a member, as SkyPilot's files have it. They are YAML, of which JSON is a part."""

import json
import math
import shlex
from typing import Any

from zooid.catalog.provider_accounts import Account
from zooid.catalog.sky_machines import SkyMachine
from zooid.core.errors import InputError
from zooid.platforms.provider import MemberOrder, start_command

_LIFETIME_MARGIN_S = 60
"""Seconds after a member's lifetime, within which the member ends by itself and records that."""


def sky_task(order: MemberOrder, machine: SkyMachine, account: Account) -> dict[str, Any]:
    """Return the task that runs a member on a machine of its own."""
    if not account.options.keys() & {"image", "setup"}:
        raise InputError(
            f"members on {account.platform} need Python with their packages, and {account.file} does not say where "
            f"they come from; write a table [{account.platform}] with image = 'docker:registry.example/zooid:1', or "
            "with setup = 'pip install torch obstore …', into it"
        )
    task = {"name": order.resource, "resources": _resources(order, machine, account), "envs": order.environment}
    if "setup" in account.options:
        task["setup"] = account.options["setup"]
    return task | {"run": _run(order, account)}


def task_text(task: dict[str, Any]) -> str:
    """Return the content of the file of a task."""
    return json.dumps(task, indent=2, ensure_ascii=False) + "\n"


def _resources(order: MemberOrder, machine: SkyMachine, account: Account) -> dict[str, Any]:
    offer = order.offer
    resources: dict[str, Any] = {"infra": machine.infra, "instance_type": machine.instance_type}
    if machine.accelerator:
        resources["accelerators"] = {machine.accelerator: offer.num_gpus}
    resources["use_spot"] = offer.market == "spot"
    if "image" in account.options:
        resources["image_id"] = account.options["image"]
    return resources


def _run(order: MemberOrder, account: Account) -> str:
    """Return the command of the task: if the member cannot end itself when its time is over, this does."""
    command = start_command(account.options.get("python", "python3"))
    if order.lifetime_s is not None:
        command = ["timeout", "--signal=KILL", str(math.ceil(order.lifetime_s) + _LIFETIME_MARGIN_S), *command]
    return f"exec {shlex.join(command)}\n"
