"""Members on machines that the stand-in for SkyPilot rents, through zooid's own use of the command."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from lab.endpoints.sky_service import SkyService
from lab.endpoints.sky_tasks_checked import MachineType
from lab.platform_scenes import MachinesLack, Scene, server_url, variables
from lab.sandboxes.sandbox import PYTHON, missing_for_sandboxes, sandbox_host
from lab.servers import moto_s3
from zooid.catalog.provider_accounts import accounts
from zooid.catalog.sky_machines import SkyMachine, sky_machine
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.resources.offer import Offer
from zooid.platforms import Platform
from zooid.platforms.provider import resource_name
from zooid.platforms.skypilot import skypilot_platform

MIB = 2**20
INFRA = "aws/us-east-1"
_TINY = "aws.ec2.t3.nano"
"""A machine that the catalog lacks, since nothing can be trained there: the smallest of its cloud."""
MACHINES = {
    (machine.infra, machine.name): machine
    for machine in (
        MachineType(INFRA, "c5.4xlarge", 0.68, 2048 * MIB, 2.0),
        MachineType(INFRA, "c5.18xlarge", 3.06, 2048 * MIB, 2.0),
        MachineType(INFRA, "t3.nano", 0.0052, 512 * MIB, 2.0),
    )
}
"""The prices are those of EC2. The memory and the cores of the large ones are a fraction, so that they fit here."""
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@contextmanager
def sky_cluster(**settings: Any) -> Iterator[tuple[SkyService, Scene]]:
    """Yield the stand-in, and the scene; `settings` are those of the stand-in."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise MachinesLack(f"machines that are rented need {lacking}")
    with ExitStack() as stack:
        host = stack.enter_context(sandbox_host())
        server = stack.enter_context(moto_s3(host.caller_address))
        stack.enter_context(variables(server.environment))
        service = SkyService(host, MACHINES, {name: server.environment[name] for name in _CREDENTIALS}, **settings)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-sky-scene-")))
        program, file = folder / "sky", folder / "machines.toml"
        stack.enter_context(service.serve(program))
        file.write_text(f'[skypilot]\ncommand = "{program}"\nsetup = "test -x {PYTHON}"\npython = "{PYTHON}"\n')
        stack.enter_context(variables({"ZOOID_MACHINES": str(file)}))

        def make() -> Platform:
            platform = skypilot_platform(accounts(file)["skypilot"], offer_of, machine_of, look_s=1.0)
            stack.callback(platform.release)
            return platform

        scene = Scene(
            "skypilot",
            make,
            [offer_of("aws.ec2.c5.4xlarge"), offer_of("aws.ec2.c5.18xlarge")],
            PYTHON,
            url=server_url(server),
            tight=offer_of(_TINY),
            gives_notice=False,
            lose=lambda run, title: service.lose(resource_name(run, title)),
            left_behind=lambda run: service.living(_prefix(run)),
            billed_usd=lambda run: service.billed_usd(_prefix(run)),
        )
        yield service, scene


@contextmanager
def sky_scene() -> Iterator[Scene]:
    """Members on machines of a cloud, one on each."""
    with sky_cluster() as (_, scene):
        yield scene


def offer_of(name: str) -> Offer:
    """Return an offer of the catalog, or that of the smallest machine."""
    if name != _TINY:
        return rented_offer(name)
    known = rented_offer("aws.ec2.c5.4xlarge")
    return structs.replace(known, name=_TINY, vcpus=2.0, memory_bytes=512 * MIB, usd_per_hour=0.0052)


def machine_of(offer: str) -> SkyMachine:
    """Return the machine of an offer."""
    if offer != _TINY:
        return sky_machine(offer)
    return structs.replace(sky_machine("aws.ec2.c5.4xlarge"), offer=_TINY, instance_type="t3.nano")


def _prefix(run: str) -> str:
    return resource_name(run, "").rstrip("-") + "-"
