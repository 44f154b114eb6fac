"""Members as jobs of Azure Container Apps, which are billed by the second: on CPUs, and on serverless GPUs.

Each member is a job of its own, which is started once. Its execution stays listed with its times until the job is
deleted.
"""

import hashlib
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers import ContainerAppsAPIClient
from azure.mgmt.appcontainers.models import (
    Container,
    ContainerResources,
    EnvironmentVar,
    Job,
    JobConfiguration,
    JobConfigurationManualTriggerConfig,
    JobExecution,
    JobProperties,
    JobTemplate,
    ManagedEnvironment,
    ManagedServiceIdentity,
    RegistryCredentials,
    Usage,
    UserAssignedIdentity,
)

from zooid.core.errors import InputError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit
from zooid.core.units import format_bytes
from zooid.platforms.azure_container.azure_account import AzurePlace
from zooid.platforms.azure_container.execution_ends import UNFINISHED, exit_of_executions
from zooid.platforms.azure_container.member_looks import MemberLooks
from zooid.platforms.azure_container.resource_manager import (
    Quota,
    asking,
    connect,
    each,
    finish,
    in_group,
    num_within,
    require_quota,
)
from zooid.platforms.provider import MemberOrder, resource_name, start_command

logger = logging.getLogger(__name__)

_GIB = 2**30
_MAX_NAME = 32
"""Characters of a job's name."""
_VCPU_GRAIN, _MAX_VCPUS, _GIB_PER_VCPU = 0.25, 4.0, 2.0
"""Sizes without GPUs: quarters of a vCPU, each with its share of memory."""
_GPU_PROFILES = {"T4": "Consumption-GPU-NC8as-T4", "A100": "Consumption-GPU-NC24-A100"}
"""Types of workload profiles with one GPU, by the GPU's model."""
_CPU_PROFILE = "Consumption"
_CORES = "ManagedEnvironmentConsumptionCores"
"""A quota of the environment."""
_GPU_QUOTAS = {"T4": "SubscriptionConsumptionT4Gpus", "A100": "SubscriptionConsumptionNCA100Gpus"}
"""Quotas of the subscription in a region."""
_MARGIN_S = 120.0
"""The limit of a job counts from the pull of its image on, and that of a member from its first instruction on."""
_LONGEST_S = 7 * 86_400.0
"""The limit of a member without one. Azure asks for a limit, and takes half an hour if none is given."""
_RUN, _TITLE = "zooid-run", "zooid-title"


class ContainerJobs:
    """Starts, lists and ends members in one environment of Container Apps."""

    def __init__(self, place: AzurePlace) -> None:
        self._place = place
        self._connection = connect(place)
        self._client = ContainerAppsAPIClient(
            self._connection.credential, place.subscription, **self._connection.options
        )
        self._environment_group, _, self._environment_name = place.environment.partition("/resourceGroups/")[
            2
        ].partition("/providers/Microsoft.App/managedEnvironments/")
        if not self._environment_name:
            raise InputError(
                f"`environment` of [{place.account.platform}] in {place.account.file} is {place.environment!r}; give "
                "the name or the resource ID of an environment of Container Apps"
            )
        self._looks = MemberLooks(self._look, "job")

    def check(self, orders: Collection[MemberOrder]) -> None:
        place = self._place
        for order in orders:
            _require_size(order.offer)
        for offer in {order.offer.name: order.offer for order in orders}.values():
            self._profile_of(offer)
        with asking(place, f"the image {place.image} cannot be started"), in_group(place):
            existing = {job.name for job in self._client.jobs.list_by_resource_group(place.resource_group)}
        new = [order for order in orders if _job_name(order.run, order.title) not in existing]
        needed: dict[str, float] = {}
        for order in new:
            for name, amount in _needs(order.offer).items():
                needed[name] = needed.get(name, 0.0) + amount
        require_quota(place, self._quotas(), needed, len(new))

    def start(self, order: MemberOrder) -> None:
        place, jobs = self._place, self._client.jobs
        name = _job_name(order.run, order.title)
        with asking(place, f"{order.title} cannot be started"):
            try:
                jobs.get(place.resource_group, name)
            except ResourceNotFoundError:
                with in_group(place):
                    finish(jobs.begin_create_or_update(place.resource_group, name, self._job_of(order)))
            try:
                if not self._executions(name):
                    # without polling: whether the container starts, `states` sees
                    jobs.begin_start(place.resource_group, name, polling=False)
            except ResourceNotFoundError as error:
                raise ZooidError(f"{order.title} cannot be started: Azure does not find its job {name}") from error

    def _job_of(self, order: MemberOrder) -> Job:
        place, offer = self._place, order.offer
        container = Container(
            name="member",
            image=place.image,
            command=start_command(place.python),
            env=[EnvironmentVar(name=name, value=value) for name, value in order.environment.items()],
            resources=ContainerResources(cpu=offer.vcpus, memory=f"{offer.memory_bytes / _GIB:g}Gi"),
        )
        lifetime_s = _LONGEST_S if order.lifetime_s is None else order.lifetime_s
        configuration = JobConfiguration(
            trigger_type="Manual",
            replica_timeout=math.ceil(lifetime_s + _MARGIN_S),
            replica_retry_limit=0,
            manual_trigger_config=JobConfigurationManualTriggerConfig(replica_completion_count=1, parallelism=1),
        )
        identity = None
        if place.identity:
            identity = ManagedServiceIdentity(
                type="UserAssigned", user_assigned_identities={place.identity: UserAssignedIdentity()}
            )
        if place.registry:
            configuration.registries = [RegistryCredentials(server=place.registry, identity=place.identity)]
        return Job(
            location=self._environment.location,
            tags={_RUN: order.run, _TITLE: order.title},
            identity=identity,
            properties=JobProperties(
                environment_id=place.environment,
                workload_profile_name=self._profile_of(offer),
                configuration=configuration,
                template=JobTemplate(containers=[container]),
            ),
        )

    @cached_property
    def _environment(self) -> ManagedEnvironment:
        place = self._place
        with asking(place, f"the environment {self._environment_name} cannot be read"):
            try:
                environment = self._client.managed_environments.get(self._environment_group, self._environment_name)
            except ResourceNotFoundError as error:
                raise InputError(
                    f"Azure has no environment {self._environment_name!r} of Container Apps in the resource group "
                    f"{self._environment_group}; make it with: az containerapp env create --name "
                    f"{self._environment_name} --resource-group {self._environment_group} --location {place.region}"
                ) from error
        region = environment.location.replace(" ", "").lower()
        if region != place.region:
            raise InputError(
                f"the environment {self._environment_name} is in {region}, and members are to be started in "
                f"{place.region}; name an environment of that region, or give an offer of {region}"
            )
        return environment

    def _profile_of(self, offer: Offer) -> str | None:
        """Return the workload profile of members on an offer; None in an environment that has no profiles."""
        properties = self._environment.properties
        profiles = (properties.workload_profiles if properties is not None else None) or []
        types = {profile.name: profile.workload_profile_type for profile in profiles}
        wanted = _GPU_PROFILES[offer.gpu] if offer.num_gpus else _CPU_PROFILE
        given = self._place.account.options.get("profile", "")
        fitting = [name for name, kind in types.items() if kind == wanted and given in ("", name)]
        if fitting:
            return fitting[0]
        if not types and not offer.num_gpus:
            return None
        listed = ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "none"
        raise InputError(
            f"{offer.name} needs a workload profile of the type {wanted}"
            f"{f' with the name {given}' if given else ''}, and the environment {self._environment_name} has {listed}; "
            f"add one with: az containerapp env workload-profile add --name {self._environment_name} --resource-group "
            f"{self._environment_group} --workload-profile-name {given or 'zooid'} --workload-profile-type {wanted}"
        )

    def _executions(self, name: str) -> Sequence[JobExecution]:
        return list(self._client.jobs_executions.list(self._place.resource_group, name))

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        with asking(self._place, "jobs cannot be listed"):
            return self._looks.states(run, titles)

    def _look(self, run: str, title: str) -> Exit | None:
        return exit_of_executions(self._executions(_job_name(run, title)))

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        deleted = each(titles, lambda title: self._delete(_job_name(run, title)))
        left = {title for title, is_deleted in deleted.items() if not is_deleted}
        self._looks.forget(run, set(titles) - left)
        return left

    def _delete(self, name: str) -> bool:
        group, jobs = self._place.resource_group, self._client.jobs
        try:
            with asking(self._place, f"the job {name} cannot be deleted"):
                for execution in self._executions(name):
                    if execution.status in UNFINISHED and execution.name:
                        with suppress(ResourceNotFoundError):
                            finish(jobs.begin_stop_execution(group, name, execution.name))
                finish(jobs.begin_delete(group, name))
        except ResourceNotFoundError:
            pass
        except ZooidError as error:
            logger.warning("%s", error)
            return False
        return True

    def num_free(self, offer: Offer) -> int | None:
        return num_within(self._quotas(), _needs(offer))

    def _quotas(self) -> dict[str, Quota]:
        place = self._place
        with asking(place, f"quotas in {place.region} cannot be read"), in_group(place):
            of_environment = self._client.managed_environment_usages.list(
                self._environment_group, self._environment_name
            )
            return dict(_read_quotas([*of_environment, *self._client.usages.list(place.region)]))

    def close(self) -> None:
        self._client.close()
        self._connection.close()


def _job_name(run: str, title: str) -> str:
    """Return the name of a member's job: that of its other resources, but short enough.

    >>> _job_name("5f2c9a1e", "000000.r0s1")
    'zooid-5f2c9a1e-000000-r0s1'
    """
    name = resource_name(run, title)
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - len(digest) - 1].rstrip('-')}-{digest}"


def _require_size(offer: Offer) -> None:
    """Reject an offer that jobs do not have."""
    if offer.num_gpus:
        if offer.gpu not in _GPU_PROFILES or offer.num_gpus != 1:
            raise InputError(
                f"{offer.name} has {offer.num_gpus} × {offer.gpu}; a job of Container Apps may have one of "
                f"{', '.join(_GPU_PROFILES)}"
            )
        return
    memory_gib, grains = offer.memory_bytes / _GIB, offer.vcpus / _VCPU_GRAIN
    is_share = math.isclose(memory_gib, offer.vcpus * _GIB_PER_VCPU)
    if not (is_share and math.isclose(grains, round(grains)) and offer.vcpus <= _MAX_VCPUS):
        raise InputError(
            f"{offer.name} has {offer.vcpus:g} vCPUs and {format_bytes(offer.memory_bytes)}; a job of Container Apps "
            f"may have up to {_MAX_VCPUS:g} vCPUs, in steps of {_VCPU_GRAIN}, with {_GIB_PER_VCPU:g} GiB of memory for "
            "each vCPU"
        )


def _needs(offer: Offer) -> dict[str, float]:
    """Return what one member takes of each quota."""
    return {_GPU_QUOTAS[offer.gpu]: 1.0} if offer.num_gpus else {_CORES: offer.vcpus}


def _read_quotas(listed: Collection[Usage]) -> Iterator[tuple[str, Quota]]:
    for usage in listed:
        if usage.name.value is not None:
            yield (
                usage.name.value,
                Quota(usage.name.localized_value or usage.name.value, usage.limit, usage.current_value),
            )
