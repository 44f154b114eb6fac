"""Azure Container Apps: jobs whose executions run in sandboxes, workload profiles, quotas, and what all of that costs.

As the service documents it, a job is made first and started then, each start is an execution, and a replica is charged
while it runs. The service tells no times of replicas, so that the times of their executions are charged here.
"""

import math
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab.endpoints.azure_groups import REGION, written_time
from lab.endpoints.azure_models import job_problems
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

ENVIRONMENT = "laboratory"
"""The only environment of the resource group."""
API_VERSION = "2026-07-01"
USD_PER_VCPU_S, USD_PER_GIB_S = 0.000024, 0.000003
USD_PER_GPU_S = {"Consumption-GPU-NC8as-T4": 0.000073, "Consumption-GPU-NC24-A100": 0.000529}
"""Azure Retail Prices of Container Apps in East US in August 2026."""
_PROVIDER = "Microsoft.App"
_PATH = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/{_PROVIDER}"
_ENVIRONMENT_ID = f"{_PATH}/managedEnvironments/{ENVIRONMENT}"
_NAME = re.compile(r"[a-z]([a-z0-9]|-(?!-)){0,30}[a-z0-9]")
_SIZES = {"Consumption-GPU-NC8as-T4": (8.0, 56.0), "Consumption-GPU-NC24-A100": (24.0, 220.0)}
"""The vCPUs and GiB of profiles with GPUs."""
_GPU_QUOTAS = {
    "Consumption-GPU-NC8as-T4": "SubscriptionConsumptionT4Gpus",
    "Consumption-GPU-NC24-A100": "SubscriptionConsumptionNCA100Gpus",
}
_CORES = "ManagedEnvironmentConsumptionCores"
_PROVISIONING_S = 0.1
_DISK_BYTES = 2 * 2**30
_SHARED_MEMORY_BYTES = 64 * 2**20
_GIB = 2**30


@dataclass
class _Execution:
    """One start of a job."""

    name: str
    container: RentedContainer
    is_stopped: bool = False

    def shown(self, job: "_Job") -> dict[str, Any]:
        """Return the execution as the service lists it."""
        container = self.container
        properties: dict[str, Any] = {
            "status": "Running",
            "startTime": written_time(container.pulled_from_s),
            "template": {"containers": job.request["properties"]["template"]["containers"]},
        }
        if container.has_ended and container.ended_at_s is not None:
            ended: dict[str, Any] = {"name": "member", "code": container.code, "status": "Terminated"}
            if container.ran_out_of_memory:
                ended["additionalInformation"] = "OOMKilled"
            properties["endTime"] = written_time(container.ended_at_s)
            properties["status"] = "Succeeded" if container.code == 0 else "Failed"
            if self.is_stopped:
                properties["status"] = "Stopped"
            elif container.is_over_time:
                properties |= {"reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"}
            properties["detailedStatus"] = {"replicas": [{"name": f"{self.name}-0", "containers": [ended]}]}
        shown = {
            "id": f"{_PATH}/jobs/{job.name}/executions/{self.name}",
            "name": self.name,
            "type": f"{_PROVIDER}/jobs/executions",
            "properties": properties,
        }
        check_answer(job_problems("JobExecution", shown, is_answer=True))
        return shown


@dataclass
class _Job:
    name: str
    request: dict[str, Any]
    profile_type: str
    ready_at_s: float
    """When it will have been made, as Unix time."""
    executions: list[_Execution] = field(default_factory=list)

    @property
    def size(self) -> tuple[float, float]:
        """The vCPUs and the GiB of memory that were asked for."""
        resources = self.request["properties"]["template"]["containers"][0]["resources"]
        return resources["cpu"], float(resources["memory"].removesuffix("Gi"))

    @property
    def usd(self) -> float:
        """Price of the executions that have ended, by the second."""
        vcpus, memory_gib = self.size
        usd_per_s = vcpus * USD_PER_VCPU_S + memory_gib * USD_PER_GIB_S + USD_PER_GPU_S.get(self.profile_type, 0.0)
        times = [(each.container.pulled_from_s, each.container.ended_at_s) for each in self.executions]
        return math.fsum(math.ceil(ended_s - begun_s) * usd_per_s for begun_s, ended_s in times if ended_s is not None)

    @property
    def num_running(self) -> int:
        return sum(not execution.container.has_ended for execution in self.executions)

    def shown(self) -> dict[str, Any]:
        """Return the job as the service does."""
        state = "Succeeded" if time.time() >= self.ready_at_s else "InProgress"
        shown = {
            **self.request,
            "id": f"{_PATH}/jobs/{self.name}",
            "name": self.name,
            "type": f"{_PROVIDER}/jobs",
            "properties": {**self.request["properties"], "provisioningState": state},
        }
        check_answer(job_problems("Job", shown, is_answer=True))
        return shown


@dataclass
class ContainerApps:
    """The service for one subscription, resource group and environment."""

    host: SandboxHost
    image: str
    image_environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the image sets, as those of a role that may use the store."""
    profiles: dict[str, str] = field(
        default_factory=lambda: {"Consumption": "Consumption", "gpu-t4": "Consumption-GPU-NC8as-T4"}
    )
    """The types of the environment's workload profiles, by their names."""
    pull_s: float = 0.2
    grace_s: float = 2.0
    """Seconds between SIGTERM and SIGKILL for an execution that is stopped; those of the service are 30."""
    limits: dict[str, float] = field(default_factory=lambda: {_CORES: 100, "SubscriptionConsumptionT4Gpus": 1})

    def __post_init__(self) -> None:
        operations = f"{_PROVIDER}/locations/containerappsJobOperation"
        asking = {"Location": [f"{operations}Results/read"], "Azure-AsyncOperation": [f"{operations}Statuses/read"]}
        self.arm = ArmServer(API_VERSION, asking)
        self._jobs: dict[str, _Job] = {}
        self._deleted: list[_Job] = []
        self._lock = threading.RLock()
        jobs, environments = f"{GROUP_PATH}{_PROVIDER}/jobs", f"{GROUP_PATH}{_PROVIDER}/managedEnvironments"
        self.arm.route("GET", f"{environments}/{{environment}}", self._get_environment)
        self.arm.route("GET", f"{environments}/{{environment}}/usages", self._environment_usages)
        self.arm.route("GET", f"{LOCATION_PATH}{_PROVIDER}/locations/{{location}}/usages", self._usages)
        self.arm.route("GET", jobs, self._list)
        self.arm.route("PUT", f"{jobs}/{{name}}", self._put, f"{_PROVIDER}/managedEnvironments/join/action")
        self.arm.route("GET", f"{jobs}/{{name}}", self._get)
        self.arm.route("DELETE", f"{jobs}/{{name}}", self._delete)
        self.arm.route("POST", f"{jobs}/{{name}}/start", self._start, f"{_PROVIDER}/jobs/start/action")
        self.arm.route("GET", f"{jobs}/{{name}}/executions", self._list_executions)
        stop = f"{jobs}/{{name}}/executions/{{execution}}/stop"
        self.arm.route("POST", stop, self._stop, f"{_PROVIDER}/jobs/stop/execution/action")

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer requests; yields the URL. All containers end with the block."""
        with self.arm.serve() as url:
            try:
                yield url
            finally:
                for job in [*self._jobs.values(), *self._deleted]:
                    for execution in job.executions:
                        execution.container.kill()
                        execution.container.wait()

    def _get_environment(self, environment: str) -> ArmAnswer:
        self._require_environment(environment)
        profiles = [{"name": name, "workloadProfileType": kind} for name, kind in self.profiles.items()]
        shown = {
            "id": _ENVIRONMENT_ID,
            "name": ENVIRONMENT,
            "type": f"{_PROVIDER}/managedEnvironments",
            "location": "East US",
            "properties": {"provisioningState": "Succeeded", "workloadProfiles": profiles},
        }
        check_answer(job_problems("ManagedEnvironment", shown, is_answer=True))
        return ArmAnswer(200, shown)

    def _require_environment(self, name: str) -> None:
        if name != ENVIRONMENT:
            raise _not_found(f"managedEnvironments/{name}")

    def _environment_usages(self, environment: str) -> ArmAnswer:
        self._require_environment(environment)
        return self._usages_of({_CORES})

    def _usages(self, location: str) -> ArmAnswer:
        if location != REGION:
            raise ArmRefusal(404, "NoRegisteredProviderFound", f"No registered provider found for '{location}'.")
        return self._usages_of(self.limits.keys() - {_CORES})

    def _usages_of(self, names: set[str]) -> ArmAnswer:
        with self._lock:
            used = self._used()
        usages = [
            {"unit": "Count", "currentValue": used.get(name, 0), "limit": self.limits[name], "name": {"value": name}}
            for name in names
        ]
        check_answer([text for usage in usages for text in job_problems("Usage", usage, is_answer=True)])
        return ArmAnswer(200, {"value": usages})

    def _used(self) -> dict[str, float]:
        used: dict[str, float] = {}
        for job in self._jobs.values():
            name, amount = _need(job.profile_type, job.size[0])
            used[name] = used.get(name, 0.0) + amount * job.num_running
        return used

    def _put(self, name: str, body: dict[str, Any]) -> ArmAnswer:
        refuse_problems(self._problems(name, body))
        properties = body["properties"]
        if properties["template"]["containers"][0]["image"] != self.image:
            raise ArmRefusal(400, "InvalidParameterValueInContainerTemplate", "The image cannot be pulled.")
        profile_type = self.profiles[properties["workloadProfileName"]]
        with self._lock:
            is_new = name not in self._jobs
            if is_new:
                self._jobs[name] = _Job(name, body, profile_type, time.time() + _PROVISIONING_S)
            job = self._jobs[name]
        header = "Azure-AsyncOperation"
        status = 201 if is_new else 200
        return ArmAnswer(status, job.shown(), is_done=lambda: time.time() >= job.ready_at_s, header=header)

    def _problems(self, name: str, body: dict[str, Any]) -> list[str]:
        found = job_problems("Job", body)
        if found:
            return found
        properties = body["properties"]
        configuration, [container] = properties["configuration"], properties["template"]["containers"]
        if _NAME.fullmatch(name) is None:
            found.append(f"the name {name} must have 2 to 32 lower-case letters, digits and single hyphens")
        if body["location"].replace(" ", "").lower() != REGION:
            found.append(f"location must be {REGION}, in which the environment is")
        if properties["environmentId"] != _ENVIRONMENT_ID:
            found.append(f"there is no environment {properties['environmentId']}")
        if configuration["replicaTimeout"] <= 0 or configuration.get("replicaRetryLimit", 0) < 0:
            found.append("replicaTimeout must be positive, and replicaRetryLimit not negative")
        profile_type = self.profiles.get(properties.get("workloadProfileName") or "")
        if profile_type is None:
            return [*found, f"there is no workload profile {properties.get('workloadProfileName')}"]
        size = (container["resources"]["cpu"], container["resources"]["memory"])
        vcpus, memory_gib = _SIZES.get(profile_type, (4.0, 8.0))
        if profile_type == "Consumption":
            sizes = [(0.25 * number, f"{0.5 * number:g}Gi") for number in range(1, 17)]
            if size not in sizes:
                found.append(f"cpu and memory are {size}; they must be one of {sizes}")
        elif size[0] > vcpus or float(size[1].removesuffix("Gi")) > memory_gib:
            found.append(f"cpu and memory are {size}; a replica has up to {vcpus:g} vCPUs and {memory_gib:g}Gi")
        return found

    def _known(self, name: str) -> _Job:
        if name not in self._jobs:
            raise _not_found(f"jobs/{name}")
        return self._jobs[name]

    def _get(self, name: str) -> ArmAnswer:
        with self._lock:
            return ArmAnswer(200, self._known(name).shown())

    def _list(self) -> ArmAnswer:
        with self._lock:
            return ArmAnswer(200, {"value": [job.shown() for job in self._jobs.values()]})

    def _start(self, name: str, body: dict[str, Any]) -> ArmAnswer:
        with self._lock:
            job = self._known(name)
            if time.time() < job.ready_at_s:
                raise ArmRefusal(409, "ContainerAppsJobOperationInProgress", f"The job {name} is still being made.")
            quota, amount = _need(job.profile_type, job.size[0])
            if self._used().get(quota, 0.0) + amount > self.limits.get(quota, 0.0):
                raise ArmRefusal(429, "QuotaExceeded", f"The quota {quota} is used up.", {"Retry-After": "1"})
            execution = _Execution(f"{name}-{uuid.uuid4().hex[:7]}", self._run(job))
            job.executions.append(execution)
        answer = {"name": execution.name, "id": f"{_PATH}/jobs/{name}/executions/{execution.name}"}
        check_answer(job_problems("JobExecutionBase", answer, is_answer=True))
        return ArmAnswer(202, answer, is_done=lambda: True)

    def _run(self, job: _Job) -> RentedContainer:
        properties = job.request["properties"]
        [container] = properties["template"]["containers"]
        vcpus, memory_gib = job.size
        given = {each["name"]: each.get("value", "") for each in container.get("env") or []}
        confines = Confines(
            memory_bytes=round(memory_gib * _GIB),
            vcpus=vcpus,
            tmp_bytes=_DISK_BYTES,
            shared_memory_bytes=_SHARED_MEMORY_BYTES,
            is_read_only=False,
            shows_cgroups=True,
            environment={**self.image_environment, **given},
        )
        command = [PYTHON if each == "python3" else each for each in container["command"]]
        limit_s = properties["configuration"]["replicaTimeout"]
        return RentedContainer(self.host, command, confines, pull_s=self.pull_s, limit_s=limit_s)

    def _list_executions(self, name: str) -> ArmAnswer:
        with self._lock:
            job = self._known(name)
            return ArmAnswer(200, {"value": [execution.shown(job) for execution in job.executions]})

    def _stop(self, name: str, execution: str, body: dict[str, Any]) -> ArmAnswer:
        with self._lock:
            found = [each for each in self._known(name).executions if each.name == execution]
        if not found:
            raise _not_found(f"jobs/{name}/executions/{execution}")
        [stopped] = found
        if not stopped.container.has_ended:
            stopped.is_stopped = True
            stopped.container.stop(self.grace_s)
        return ArmAnswer(202, is_done=lambda: stopped.container.has_ended)

    def _delete(self, name: str) -> ArmAnswer:
        with self._lock:
            if name not in self._jobs:
                return ArmAnswer(204)
            job = self._jobs[name]
            for execution in job.executions:
                execution.container.stop(self.grace_s)

        def is_done() -> bool:
            if job.num_running:
                return False
            self._forget(name)
            return True

        if is_done():
            return ArmAnswer(200, {})
        return ArmAnswer(202, is_done=is_done)

    def _forget(self, name: str) -> None:
        with self._lock:
            if name in self._jobs:
                self._deleted.append(self._jobs.pop(name))

    # What tests do, and look at

    def requests_of(self, run: str) -> list[dict[str, Any]]:
        """Return what was asked for the jobs of a run."""
        with self._lock:
            jobs = [*self._jobs.values(), *self._deleted]
        return [job.request for job in jobs if job.request["tags"]["zooid-run"] == run]

    def container_of(self, run: str, title: str) -> RentedContainer:
        """Return the container of a member's only execution."""
        with self._lock:
            [job] = [job for job in self._jobs.values() if _tags(job) == (run, title)]
            [execution] = job.executions
            return execution.container

    def lose(self, run: str, title: str) -> None:
        """Let a job vanish at once, with its execution."""
        with self._lock:
            [name] = [job.name for job in self._jobs.values() if _tags(job) == (run, title)]
            container = self._jobs[name].executions[0].container
            self._forget(name)
        container.kill()
        container.wait()

    def left_of(self, run: str) -> list[str]:
        """Name the jobs of a run that exist."""
        with self._lock:
            return [job.name for job in self._jobs.values() if _tags(job)[0] == run]

    def billed_usd(self, run: str) -> float:
        """Return what the ended executions of a run cost."""
        with self._lock:
            jobs = [*self._jobs.values(), *self._deleted]
        return math.fsum(job.usd for job in jobs if _tags(job)[0] == run)


def _tags(job: _Job) -> tuple[str, str]:
    return job.request["tags"]["zooid-run"], job.request["tags"]["zooid-title"]


def _need(profile_type: str, vcpus: float) -> tuple[str, float]:
    """Return the quota of an execution, and how much of it one takes."""
    return (_GPU_QUOTAS[profile_type], 1.0) if profile_type in _GPU_QUOTAS else (_CORES, vcpus)


def _not_found(what: str) -> ArmRefusal:
    message = f"The Resource '{_PROVIDER}/{what}' under resource group '{RESOURCE_GROUP}' was not found."
    return ArmRefusal(404, "ResourceNotFound", message)
