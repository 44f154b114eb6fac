"""Scenes of Azure: members in its containers, which run in sandboxes and reach a store of the laboratory."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.endpoints.azure_groups import REGION, ContainerInstances
from lab.endpoints.azure_jobs import ENVIRONMENT, ContainerApps
from lab.endpoints.azure_server import RESOURCE_GROUP, SUBSCRIPTION
from lab.platform_scenes import MachinesLack, Scene, server_url, variables
from lab.sandboxes.sandbox import PYTHON, SandboxHost, missing_for_sandboxes, sandbox_host
from lab.servers import S3Server, moto_s3
from zooid.catalog.provider_accounts import Account
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.coordinator.plans.own_offers import account_with
from zooid.core.resources.offer import Offer
from zooid.platforms import Platform
from zooid.platforms.azure_container import group_platform, job_platform
from zooid.platforms.provider import resource_name
from zooid.platforms.provider_platform import ProviderPlatform

IMAGE = "laboratory.azurecr.io/zooid:1"
IDENTITY = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/Microsoft.ManagedIdentity/"
    "userAssignedIdentities/zooid-member"
)
_LIMITS = {"ContainerGroups": 100, "StandardCores": 400}
"""Quotas of a subscription that has asked for more cores, so that many members can run."""
_JOB_LIMITS = {"ManagedEnvironmentConsumptionCores": 400.0}
_STORE_LOGIN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@contextmanager
def container_instances(**options: str) -> Iterator[tuple[ContainerInstances, Scene]]:
    """Yield the service of container groups, and the scene; `options` are further ones of the account."""
    with _ground() as (host, server):
        login = {name: server.environment[name] for name in _STORE_LOGIN}
        service = ContainerInstances(host, IMAGE, login, limits=_LIMITS)
        with service.serve() as url, _account("azure_container", {"endpoint": url, **options}), ExitStack() as stack:
            scene = Scene(
                "azure_container",
                _maker(stack, group_platform, "azure_container"),
                [rented_offer(name) for name in ("azure.aci.cpu.4x4", "azure.aci.cpu.4x8", "azure.aci.cpu.4x16")],
                PYTHON,
                url=server_url(server),
                tight=rented_offer("azure.aci.cpu.1x1"),
                notify=lambda run, title: service.container_of(resource_name(run, title)).notify(),
                lose=lambda run, title: service.lose(resource_name(run, title)),
                left_behind=service.left_of,
                billed_usd=service.billed_usd,
            )
            yield service, scene


@contextmanager
def container_apps() -> Iterator[tuple[ContainerApps, Scene]]:
    """Yield the service of jobs of Container Apps, without GPUs, and the scene."""
    with _ground() as (host, server):
        login = {name: server.environment[name] for name in _STORE_LOGIN}
        service = ContainerApps(host, IMAGE, login, limits=_JOB_LIMITS)
        with (
            service.serve() as url,
            _account("azure_job", {"endpoint": url, "environment": ENVIRONMENT}),
            ExitStack() as stack,
        ):
            scene = Scene(
                "azure_job",
                _maker(stack, job_platform, "azure_job"),
                [rented_offer(name) for name in ("azure.jobs.cpu.4x8", "azure.jobs.cpu.2x4")],
                PYTHON,
                url=server_url(server),
                tight=rented_offer("azure.jobs.cpu.1x2"),
                notify=lambda run, title: service.container_of(run, title).notify(),
                lose=service.lose,
                left_behind=service.left_of,
                billed_usd=service.billed_usd,
            )
            yield service, scene


@contextmanager
def azure_container_scene(**options: str) -> Iterator[Scene]:
    """Members as container groups; `options` are further ones of the account."""
    with container_instances(**options) as (_, scene):
        yield scene


@contextmanager
def azure_job_scene() -> Iterator[Scene]:
    """Members as jobs of Container Apps."""
    with container_apps() as (_, scene):
        yield scene


@contextmanager
def _ground() -> Iterator[tuple[SandboxHost, S3Server]]:
    """A place for sandboxes, and a store that they reach."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise MachinesLack(f"sandboxes need {lacking}")
    with sandbox_host() as host, moto_s3(host.caller_address) as server, variables(server.environment):
        yield host, server


@contextmanager
def _account(platform: str, options: Mapping[str, str]) -> Iterator[None]:
    """Let the user's file of machines name the account of the laboratory."""
    account = {
        "subscription": SUBSCRIPTION,
        "resource_group": RESOURCE_GROUP,
        "region": REGION,
        "image": IMAGE,
        "identity": IDENTITY,
        **options,
    }
    lines = [f"[{platform}]", *(f'{name} = "{value}"' for name, value in account.items()), ""]
    with tempfile.TemporaryDirectory(prefix="zooid-azure-") as folder:
        file = Path(folder, "machines.toml")
        file.write_text("\n".join(lines))
        with variables({"ZOOID_MACHINES": str(file)}):
            yield


def _maker(
    stack: ExitStack, make: Callable[[Account, Callable[[str], Offer]], ProviderPlatform], name: str
) -> Callable[[], Platform]:
    def made() -> Platform:
        platform = make(account_with(name), rented_offer)
        stack.callback(platform.release)
        return platform

    return made
