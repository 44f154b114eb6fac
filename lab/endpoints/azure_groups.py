"""Azure Container Instances: container groups whose containers run in sandboxes, quotas, and what all of that costs.

As the service documents it, a group whose container has ended stays listed until it is deleted, lists lack the instance
view, and the time that is billed goes from the pull of the first image to the end of the group.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lab.endpoints.azure_models import group_problems
from lab.endpoints.azure_server import (
    GROUP_PATH,
    LOCATION_PATH,
    RESOURCE_GROUP,
    SUBSCRIPTION,
    ArmAnswer,
    ArmRefusal,
    ArmServer,
    check_answer,
    refuse_problems,
)
from lab.endpoints.rented_container import RentedContainer
from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import PYTHON, SandboxHost

REGION = "eastus"
API_VERSION = "2023-05-01"
USD_PER_VCPU_HOUR, USD_PER_GB_HOUR = 0.0405, 0.00445
"""Hydrozoa, Table 3: a container without a GPU."""
_PROVIDER = "Microsoft.ContainerInstance"
_NAME_LENGTH = 63
_DISK_BYTES = 2 * 2**30
"""Less than the 50 GB of the service, since what lies there counts as memory here."""
_SHARED_MEMORY_BYTES = 64 * 2**20
"""The size that container runtimes give to /dev/shm."""
_GB = 1e9
_ENUMERATIONS = {"osType": ("Linux", "Windows"), "restartPolicy": ("Always", "OnFailure", "Never")}


@dataclass
class _Group:
    """A container group, and the container in it."""

    name: str
    request: dict[str, Any]
    container: RentedContainer

    @property
    def size(self) -> tuple[float, float]:
        """The vCPUs and the GB of memory that were asked for."""
        requests = self.request["properties"]["containers"][0]["properties"]["resources"]["requests"]
        return requests["cpu"], requests["memoryInGB"]

    @property
    def usd(self) -> float:
        """Price of the container, once it has ended, for whole seconds from the one in which its pull has begun."""
        ended_s = self.container.ended_at_s
        if ended_s is None:
            return 0.0
        billed_s = math.ceil(round(ended_s, 3)) - math.floor(self.container.pulled_from_s)
        vcpus, memory_gb = self.size
        return billed_s / 3600 * (vcpus * USD_PER_VCPU_HOUR + memory_gb * USD_PER_GB_HOUR)


@dataclass
class ContainerInstances:
    """The service for one subscription and resource group, in one region."""

    host: SandboxHost
    image: str
    image_environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the image sets, as those of a role that may use the store."""
    pull_s: float = 0.2
    grace_s: float = 2.0
    """Seconds between SIGTERM and SIGKILL for a container that is deleted; those of the service are not documented."""
    limits: dict[str, int] = field(default_factory=lambda: {"ContainerGroups": 100, "StandardCores": 100})

    def __post_init__(self) -> None:
        # which of the two is asked for is not documented, so whoever asks about an operation needs both
        actions = [f"{_PROVIDER}/locations/{name}/read" for name in ("operations", "operationResults")]
        self.arm = ArmServer(API_VERSION, {"Location": actions, "Azure-AsyncOperation": actions})
        self._groups: dict[str, _Group] = {}
        self._deleted: list[_Group] = []
        self._lock = threading.RLock()
        groups = f"{GROUP_PATH}{_PROVIDER}/containerGroups"
        self.arm.route("GET", groups, self._list)
        self.arm.route("PUT", f"{groups}/{{name}}", self._put)
        self.arm.route("GET", f"{groups}/{{name}}", self._get)
        self.arm.route("DELETE", f"{groups}/{{name}}", self._delete)
        self.arm.route("GET", f"{LOCATION_PATH}{_PROVIDER}/locations/{{location}}/usages", self._usages)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer requests; yields the URL. All containers end with the block."""
        with self.arm.serve() as url:
            try:
                yield url
            finally:
                for group in [*self._groups.values(), *self._deleted]:
                    group.container.kill()
                    group.container.wait()

    def _put(self, name: str, body: dict[str, Any]) -> ArmAnswer:
        refuse_problems(self._problems(name, body))
        spec = body["properties"]["containers"][0]["properties"]
        if any("gpu" in kind for kind in spec["resources"].values()):
            raise ArmRefusal(400, "ResourceNotSupported", "GPU resources are retired as of July 14, 2025.")
        if spec["image"] != self.image:
            raise ArmRefusal(400, "InaccessibleImage", f"The image '{spec['image']}' in container is not accessible.")
        with self._lock:
            if name in self._groups:  # an update without changes; what runs goes on
                return ArmAnswer(200, self._shown(self._groups[name]))
            self._refuse_beyond_quota(spec["resources"]["requests"]["cpu"])
            given = spec.get("environmentVariables") or []
            environment = {**self.image_environment, **{each["name"]: each.get("value", "") for each in given}}
            requests = spec["resources"]["requests"]
            confines = Confines(
                memory_bytes=round(requests["memoryInGB"] * _GB),
                vcpus=requests["cpu"],
                tmp_bytes=_DISK_BYTES,
                shared_memory_bytes=_SHARED_MEMORY_BYTES,
                is_read_only=False,
                shows_cgroups=True,
                environment=environment,
            )
            command = [PYTHON if each == "python3" else each for each in spec["command"]]
            container = RentedContainer(self.host, command, confines, pull_s=self.pull_s)
            self._groups[name] = _Group(name, body, container)
            return ArmAnswer(201, self._shown(self._groups[name]))

    def _problems(self, name: str, body: dict[str, Any]) -> list[str]:
        found = group_problems("ContainerGroup", body)
        if found:
            return found
        properties = body["properties"]
        for key, allowed in _ENUMERATIONS.items():
            if properties.get(key) not in allowed:
                found.append(f"properties.{key} must be one of {', '.join(allowed)}")
        if not 1 <= len(name) <= _NAME_LENGTH or not name.replace("-", "").isalnum() or name != name.lower():
            found.append(f"the name {name} must have 1 to {_NAME_LENGTH} lower-case letters, digits and hyphens")
        if body.get("location") != REGION:
            found.append(f"location must be {REGION}, in which the resource group is")
        requests = properties["containers"][0]["properties"]["resources"]["requests"]
        if requests["memoryInGB"] <= 0 or abs(requests["memoryInGB"] * 10 - round(requests["memoryInGB"] * 10)) > 1e-6:
            found.append("memoryInGB must be a multiple of 0.1")
        return found

    def _refuse_beyond_quota(self, vcpus: float) -> None:
        used = self._used()
        for name, more in (("ContainerGroups", 1), ("StandardCores", math.ceil(vcpus))):
            if used[name] + more > self.limits[name]:
                raise ArmRefusal(
                    409,
                    "ContainerGroupQuotaReached",
                    f"Resource type '{_PROVIDER}/containerGroups' container group quota '{name}' exceeded in region "
                    f"'{REGION}'. Limit: '{self.limits[name]}', Usage: '{used[name]}' Requested: '{more}'.",
                )

    def _used(self) -> dict[str, int]:
        """Count what groups hold that still run; those that have ended are only listed."""
        running = [group for group in self._groups.values() if not group.container.has_ended]
        return {
            "ContainerGroups": len(self._groups),
            "StandardCores": math.ceil(sum(group.size[0] for group in running)),
        }

    def _list(self) -> ArmAnswer:
        with self._lock:
            return ArmAnswer(200, {"value": [self._shown(group, with_view=False) for group in self._groups.values()]})

    def _get(self, name: str) -> ArmAnswer:
        with self._lock:
            return ArmAnswer(200, self._shown(self._known(name)))

    def _known(self, name: str) -> _Group:
        if name not in self._groups:
            raise ArmRefusal(
                404,
                "ResourceNotFound",
                f"The Resource '{_PROVIDER}/containerGroups/{name}' under resource group '{RESOURCE_GROUP}' was not "
                "found.",
            )
        return self._groups[name]

    def _delete(self, name: str) -> ArmAnswer:
        with self._lock:
            if name not in self._groups:
                return ArmAnswer(204)
            group = self._groups[name]
            if group.container.has_ended:
                self._forget(name)
                return ArmAnswer(200, self._shown(group))
            group.container.stop(self.grace_s)

        def is_done() -> bool:
            if not group.container.has_ended:
                return False
            self._forget(name)
            return True

        return ArmAnswer(202, self._shown(group), is_done=is_done)

    def _forget(self, name: str) -> None:
        with self._lock:
            if name in self._groups:
                self._deleted.append(self._groups.pop(name))

    def _usages(self, location: str) -> ArmAnswer:
        if location != REGION:
            raise ArmRefusal(404, "NoRegisteredProviderFound", f"No registered provider found for '{location}'.")
        with self._lock:
            used = self._used()
        usages = [
            {
                "id": f"/subscriptions/{SUBSCRIPTION}/providers/{_PROVIDER}/locations/{location}/usages/{name}",
                "unit": "Count",
                "currentValue": used[name],
                "limit": limit,
                "name": {"value": name, "localizedValue": name},
            }
            for name, limit in self.limits.items()
        ]
        return ArmAnswer(200, {"value": usages})

    def _shown(self, group: _Group, *, with_view: bool = True) -> dict[str, Any]:
        path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/{_PROVIDER}/containerGroups"
        properties = dict(group.request["properties"])
        [container] = properties["containers"]
        inner = {key: value for key, value in container["properties"].items() if key != "instanceView"}
        if with_view:
            inner["instanceView"] = _instance_view(group.container)
            properties["instanceView"] = {"events": [], "state": _group_state(group.container)}
        properties["containers"] = [{"name": container["name"], "properties": inner}]
        properties["provisioningState"] = "Pending" if group.container.started_at_s is None else "Succeeded"
        shown = {
            **group.request,
            "id": f"{path}/{group.name}",
            "name": group.name,
            "type": f"{_PROVIDER}/containerGroups",
            "properties": properties,
        }
        check_answer(group_problems("ContainerGroup", shown, is_answer=True))
        return shown

    # What tests do, and look at

    def container_of(self, name: str) -> RentedContainer:
        """Return the container of a group."""
        with self._lock:
            return self._groups[name].container

    def lose(self, name: str) -> None:
        """Let a group vanish at once, with its container."""
        container = self.container_of(name)
        self._forget(name)
        container.kill()
        container.wait()

    def left_of(self, run: str) -> list[str]:
        """Name the groups of a run that exist."""
        with self._lock:
            return [name for name, group in self._groups.items() if group.request["tags"]["zooid-run"] == run]

    def billed_usd(self, run: str) -> float:
        """Return what the ended containers of a run cost."""
        with self._lock:
            groups = [*self._groups.values(), *self._deleted]
        return math.fsum(group.usd for group in groups if group.request["tags"]["zooid-run"] == run)


def _group_state(container: RentedContainer) -> str:
    if not container.has_ended:
        return "Pending" if container.started_at_s is None else "Running"
    return "Succeeded" if container.code == 0 else "Failed"


def _instance_view(container: RentedContainer) -> dict[str, Any]:
    pull = written_time(math.floor(container.pulled_from_s))
    events = [_event("Pulling", "pulling image", pull)]
    state: dict[str, Any] = {"state": "Waiting", "detailStatus": ""}
    started_s = container.started_at_s
    if started_s is not None:
        events += [
            _event(name, f"{name} container", written_time(math.floor(started_s))) for name in ("Pulled", "Started")
        ]
        state = {"state": "Running", "startTime": written_time(started_s), "detailStatus": ""}
    if container.has_ended and container.ended_at_s is not None:
        detail = "OOMKilled" if container.ran_out_of_memory else "Completed" if container.code == 0 else "Error"
        state = {
            "state": "Terminated",
            "startTime": written_time(container.ended_at_s if started_s is None else started_s),
            "finishTime": written_time(container.ended_at_s),
            "exitCode": container.code,
            "detailStatus": detail,
        }
    return {"restartCount": 0, "currentState": state, "events": events}


def _event(name: str, message: str, at: str) -> dict[str, Any]:
    return {"count": 1, "firstTimestamp": at, "lastTimestamp": at, "name": name, "message": message, "type": "Normal"}


def written_time(at_s: float) -> str:
    """Write a Unix time as the service does: with milliseconds."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
