"""Jobs of Cloud Run and their executions: what runs in sandboxes, how it is shown, and what it costs.

Every execution has one task, whose instance is billed from its start to its end.
"""

import datetime
import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.cloud import run_v2

from lab.endpoints.rented_container import RentedContainer
from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import PYTHON, SandboxHost

USD_PER_VCPU_S, USD_PER_GIB_S = 0.000018, 0.000002
"""Google's price list of Cloud Run jobs in us-central1 in August 2026."""
GRAIN_S, MINIMUM_S = 0.1, 60.0
_SHARED_MEMORY_BYTES = 64 * 2**20
_MIB, _GIB = 2**20, 2**30
_SIGNALLED = 128
_COMPLETED = "Completed"
_STATES: Any = run_v2.Condition.State
_REASONS: Any = run_v2.Condition.ExecutionReason
_STATUSES: Any = run_v2.ExecutionReference.CompletionStatus


@dataclass
class CloudRunTask:
    """The only task of an execution."""

    execution: str
    container: RentedContainer
    created_at_s: float = field(default_factory=time.time)
    is_cancelled: bool = False

    @property
    def has_ended(self) -> bool:
        return self.container.has_ended and self.container.ended_at_s is not None

    @property
    def billed_s(self) -> float:
        """Seconds that are charged for an instance that has ended."""
        begun_s, ended_s = self.container.started_at_s, self.container.ended_at_s
        if not self.has_ended or begun_s is None or ended_s is None:
            return 0.0
        return max(MINIMUM_S, math.ceil((ended_s - begun_s) / GRAIN_S) * GRAIN_S)

    def conditions(self, template: run_v2.TaskTemplate) -> list[run_v2.Condition]:
        """Return how the task is, in the service's words."""
        container = self.container
        if not self.has_ended:
            return [run_v2.Condition(type_=_COMPLETED, state=_STATES.CONDITION_RECONCILING)]
        if container.code == 0 and not self.is_cancelled:
            return [run_v2.Condition(type_=_COMPLETED, state=_STATES.CONDITION_SUCCEEDED)]
        failed = run_v2.Condition(type_=_COMPLETED, state=_STATES.CONDITION_FAILED)
        if self.is_cancelled:
            failed.message, failed.execution_reason = "Task was cancelled.", _REASONS.CANCELLED
        elif container.ran_out_of_memory:
            limit_mib = memory_bytes(template) // _MIB
            failed.message = f"Memory limit of {limit_mib} MiB exceeded with {limit_mib + 1} MiB used."
        elif container.is_over_time:
            failed.message = "The configured timeout was reached."
        elif (container.code or 0) > _SIGNALLED:
            failed.message = f"Container terminated on signal {(container.code or 0) - _SIGNALLED}."
        else:
            failed.message = "The container exited with an error."
            failed.execution_reason = _REASONS.NON_ZERO_EXIT_CODE
        return [failed]

    def result(self) -> run_v2.TaskAttemptResult:
        """Return how the container has ended."""
        code = self.container.code
        if not self.has_ended or code is None:
            return run_v2.TaskAttemptResult()
        if code > _SIGNALLED:
            return run_v2.TaskAttemptResult(term_signal=code - _SIGNALLED)
        return run_v2.TaskAttemptResult(exit_code=code)


@dataclass
class CloudRunJob:
    """A job that was created."""

    path: str
    request: run_v2.Job
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    tasks: list[CloudRunTask] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def run(self) -> str:
        """The run to which the job's member belongs."""
        return str(self.request.labels["zooid-run"])

    @property
    def template(self) -> run_v2.TaskTemplate:
        return self.request.template.template

    @property
    def usd(self) -> float:
        """Price of the instances that have ended."""
        usd_per_s = vcpus(self.template) * USD_PER_VCPU_S + memory_bytes(self.template) / _GIB * USD_PER_GIB_S
        return math.fsum(task.billed_s * usd_per_s for task in self.tasks)

    def shown(self) -> run_v2.Job:
        """Return the job as the service does."""
        shown = run_v2.Job(self.request)
        shown.name, shown.uid, shown.execution_count = self.path, self.uid, len(self.tasks)
        shown.terminal_condition = run_v2.Condition(type_="Ready", state=_STATES.CONDITION_SUCCEEDED)
        if self.tasks:
            latest = self.tasks[-1]
            reference = run_v2.ExecutionReference(name=latest.execution, create_time=_moment(latest.created_at_s))
            reference.completion_status = _STATUSES.EXECUTION_RUNNING
            if latest.has_ended:
                reference.completion_time = _moment(latest.container.ended_at_s)
                good = latest.container.code == 0
                reference.completion_status = _STATUSES.EXECUTION_SUCCEEDED if good else _STATUSES.EXECUTION_FAILED
                if latest.is_cancelled:
                    reference.completion_status = _STATUSES.EXECUTION_CANCELLED
            shown.latest_created_execution = reference
        return shown

    def shown_task(self, task: CloudRunTask) -> run_v2.Task:
        """Return a task as the service lists it."""
        template = self.template
        return run_v2.Task(
            name=f"{self.path}/executions/{task.execution}/tasks/{task.execution}-task0",
            job=self.name,
            execution=task.execution,
            containers=template.containers,
            timeout=template.timeout,
            service_account=template.service_account,
            create_time=_moment(task.created_at_s),
            scheduled_time=_moment(task.created_at_s),
            start_time=_moment(task.container.started_at_s),
            completion_time=_moment(task.container.ended_at_s) if task.has_ended else None,
            conditions=task.conditions(template),
            last_attempt_result=task.result(),
        )

    def start(self, host: SandboxHost, image_environment: Mapping[str, str], pull_s: float) -> CloudRunTask:
        """Begin an execution."""
        execution = f"{self.name}-{uuid.uuid4().hex[:5]}"
        template = self.template
        [container] = template.containers
        confines = Confines(
            memory_bytes=memory_bytes(template),
            vcpus=vcpus(template),
            tmp_bytes=memory_bytes(template),  # files lie in memory, and count as such
            shared_memory_bytes=_SHARED_MEMORY_BYTES,
            is_read_only=False,
            shows_cgroups=True,
            environment={
                **image_environment,
                "CLOUD_RUN_JOB": self.name,
                "CLOUD_RUN_EXECUTION": execution,
                "CLOUD_RUN_TASK_INDEX": "0",
                "CLOUD_RUN_TASK_ATTEMPT": "0",
                "CLOUD_RUN_TASK_COUNT": "1",
                **{each.name: each.value for each in container.env},
            },
        )
        command = [PYTHON if word == "python3" else word for word in container.command]
        limit_s = template.timeout.total_seconds()
        task = CloudRunTask(execution, RentedContainer(host, command, confines, pull_s=pull_s, limit_s=limit_s))
        self.tasks.append(task)
        return task


def vcpus(template: run_v2.TaskTemplate) -> float:
    """Return the vCPUs of a task."""
    return float(template.containers[0].resources.limits["cpu"])


def memory_bytes(template: run_v2.TaskTemplate) -> int:
    """Return the memory of a task."""
    return int(template.containers[0].resources.limits["memory"].removesuffix("Mi")) * _MIB


def _moment(at_s: float | None) -> Any:
    return None if at_s is None else datetime.datetime.fromtimestamp(at_s, datetime.UTC)
