"""Members as container groups of Azure Container Instances: one container each, which is billed by the second.

A container exits by itself, and stays listed with its exit code and times until its group is deleted.
"""

import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.containerinstance import ContainerInstanceManagementClient
from azure.mgmt.containerinstance.models import (
    Container,
    ContainerGroup,
    ContainerGroupIdentity,
    EnvironmentVariable,
    ImageRegistryCredential,
    ResourceRequests,
    ResourceRequirements,
    UserAssignedIdentities,
)

from zooid.core.errors import InputError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit
from zooid.core.units import format_bytes
from zooid.platforms.azure_container.azure_account import AzurePlace
from zooid.platforms.azure_container.group_ends import exit_of_group
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

_GB = 1e9
_MEMORY_GRAIN_GB = 0.1
_MAX_VCPUS, _MAX_MEMORY_GB = 31, 240
_GROUPS, _CORES = "ContainerGroups", "StandardCores"
"""Quotas of a subscription in a region."""
_RUN, _TITLE = "zooid-run", "zooid-title"
"""Tags of a container group."""


class ContainerGroups:
    """Starts, lists and ends members in one resource group and region."""

    def __init__(self, place: AzurePlace) -> None:
        self._place = place
        self._connection = connect(place)
        self._client = ContainerInstanceManagementClient(
            self._connection.credential, place.subscription, **self._connection.options
        )
        self._looks = MemberLooks(self._look, "container group")

    def check(self, orders: Collection[MemberOrder]) -> None:
        for order in orders:
            _require_size(order.offer)
        place = self._place
        with asking(place, f"the image {place.image} cannot be started"), in_group(place):
            listed = self._client.container_groups.list_by_resource_group(place.resource_group)
            existing = {group.name for group in listed}
        new = [order for order in orders if order.resource not in existing]
        needed = {_GROUPS: float(len(new)), _CORES: math.fsum(order.offer.vcpus for order in new)}
        require_quota(place, self._quotas(), needed, len(new))

    def start(self, order: MemberOrder) -> None:
        place = self._place
        groups = self._client.container_groups
        with asking(place, f"{order.title} cannot be started"):
            try:
                groups.get(place.resource_group, order.resource)
            except ResourceNotFoundError:
                # without polling: whether the container starts, `states` sees
                with in_group(place):
                    groups.begin_create_or_update(
                        place.resource_group, order.resource, self._group_of(order), polling=False
                    )

    def _group_of(self, order: MemberOrder) -> ContainerGroup:
        place, offer = self._place, order.offer
        size = ResourceRequests(cpu=offer.vcpus, memory_in_gb=offer.memory_bytes / _GB)
        container = Container(
            name="member",
            image=place.image,
            command=start_command(place.python),
            environment_variables=[
                EnvironmentVariable(name=name, value=value) for name, value in order.environment.items()
            ],
            resources=ResourceRequirements(requests=size),
        )
        identity = registries = None
        if place.identity:
            identity = ContainerGroupIdentity(
                type="UserAssigned", user_assigned_identities={place.identity: UserAssignedIdentities()}
            )
        if place.registry:
            registries = [ImageRegistryCredential(server=place.registry, identity=place.identity)]
        return ContainerGroup(
            location=place.region,
            tags={_RUN: order.run, _TITLE: order.title},
            os_type="Linux",
            restart_policy="Never",
            containers=[container],
            identity=identity,
            image_registry_credentials=registries,
        )

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        with asking(self._place, "container groups cannot be listed"):
            return self._looks.states(run, titles)

    def _look(self, run: str, title: str) -> Exit | None:
        group = self._client.container_groups.get(self._place.resource_group, resource_name(run, title))
        return exit_of_group(group)

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        deleted = each(titles, lambda title: self._delete(resource_name(run, title)))
        left = {title for title, is_deleted in deleted.items() if not is_deleted}
        self._looks.forget(run, set(titles) - left)
        return left

    def _delete(self, name: str) -> bool:
        groups = self._client.container_groups
        try:
            with asking(self._place, f"the container group {name} cannot be deleted"):
                finish(groups.begin_delete(self._place.resource_group, name))
        except ResourceNotFoundError:
            pass
        except ZooidError as error:
            logger.warning("%s", error)
            return False
        return True

    def num_free(self, offer: Offer) -> int | None:
        return num_within(self._quotas(), {_GROUPS: 1.0, _CORES: offer.vcpus})

    def _quotas(self) -> dict[str, Quota]:
        with asking(self._place, f"quotas in {self._place.region} cannot be read"):
            listed = list(self._client.location.list_usage(self._place.region))
        return dict(_read_quota(usage) for usage in listed)

    def close(self) -> None:
        self._client.close()
        self._connection.close()


def _require_size(offer: Offer) -> None:
    """Reject an offer that container groups do not have."""
    if offer.num_gpus:
        raise InputError(
            f"members cannot be started on {offer.name}: Azure has retired container groups with GPUs in July 2025; "
            "take a job of Container Apps, such as azure.jobs.t4 or azure.jobs.a100; the offer is only for plans"
        )
    memory_gb = offer.memory_bytes / _GB
    grains = memory_gb / _MEMORY_GRAIN_GB
    is_size = offer.vcpus <= _MAX_VCPUS and memory_gb <= _MAX_MEMORY_GB and math.isclose(grains, round(grains))
    if not is_size:
        raise InputError(
            f"{offer.name} has {offer.vcpus:g} vCPUs and {format_bytes(offer.memory_bytes)}; a container group may "
            f"have up to {_MAX_VCPUS} vCPUs and {_MAX_MEMORY_GB} GB, in steps of {_MEMORY_GRAIN_GB} GB"
        )


def _read_quota(usage: Any) -> tuple[str, Quota]:
    """Read one quota; by the types of Azure's package, fields that only answers have are always None."""
    name = usage.name.value
    return name, Quota(usage.name.localized_value or name, usage.limit, usage.current_value)
