"""The Admin API of Cloud Run for one project and region: the requests of Google's client for jobs, as REST.

Requests are parsed with the client's own messages, so that unknown fields are refused. They carry a token that a
service account has signed, and need the permissions of its role.
"""

import importlib
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.cloud import run_v2

from lab.endpoints.cloud_run_checks import job_problems
from lab.endpoints.cloud_run_tasks import CloudRunJob, CloudRunTask
from lab.endpoints.json_server import JsonAnswer, JsonRequest, json_server
from lab.endpoints.rented_container import RentedContainer
from lab.sandboxes.sandbox import SandboxHost

PROJECT, REGION = "laboratory", "us-central1"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
_ITEM = r"(?P<{}>[^/:]+)"
_JOBS = f"/v2/{PARENT}/jobs"
_JOB = f"{_JOBS}/{_ITEM.format('job')}"
_EXECUTION = f"{_JOB}/executions/{_ITEM.format('execution')}"
_jwt: Any = importlib.import_module("google.auth.jwt")  # these have no types
_operations: Any = importlib.import_module("google.longrunning.operations_pb2")
_json: Any = importlib.import_module("google.protobuf.json_format")
_yaml: Any = importlib.import_module("yaml")
_CREATION_S = 0.1
_ALWAYS = {"$alt"}
"""Parameters of the query that every request may have."""


class RunApiRefusal(Exception):
    """A request that the service refuses, with the code and the status of its error."""

    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class _Operation:
    """A long-running operation, whose answer is there when it is done."""

    is_done: Callable[[], bool]
    answer: Callable[[], Any]


@dataclass
class CloudRunApi:
    """The service, and the jobs of one project in one region."""

    host: SandboxHost
    image: str
    public_key: bytes
    """The key with which tokens are checked."""
    permissions: Collection[str]
    """Permissions of the role of whoever sends requests."""
    image_environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the image sets, as those of a service account that may use the store."""
    accounts: Collection[str] = ()
    """Service accounts that a job may have."""
    pull_s: float = 0.2
    grace_s: float = 2.0
    """Seconds between SIGTERM and SIGKILL for a task that is cancelled; those of the service are 10."""
    used: set[str] = field(default_factory=set)
    """Permissions that were needed."""
    outages: list[int] = field(default_factory=list)
    """Codes with which the next requests are refused, such as 503."""

    def __post_init__(self) -> None:
        self._jobs: dict[str, CloudRunJob] = {}
        self._deleted: list[CloudRunJob] = []
        self._operations: dict[str, _Operation] = {}
        self._lock = threading.RLock()
        routes: Sequence[tuple[str, str, str, Callable[..., Any]]] = (
            ("POST", _JOBS, "run.jobs.create", self._create),
            ("GET", _JOB, "run.jobs.get", self._get),
            ("DELETE", _JOB, "run.jobs.delete", self._delete),
            ("POST", f"{_JOB}:run", "run.jobs.run", self._run),
            ("POST", f"{_EXECUTION}:cancel", "run.executions.cancel", self._cancel),
            ("GET", f"{_EXECUTION}/tasks", "run.tasks.list", self._list_tasks),
            ("GET", f"/v2/{PARENT}/operations/{_ITEM.format('operation')}", "run.operations.get", self._operation),
        )
        self._routes = [(method, re.compile(path), need, handler) for method, path, need, handler in routes]

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer requests; yields the URL. All containers end with the block."""
        with json_server(self._answer) as url:
            try:
                yield url
            finally:
                for job in [*self._jobs.values(), *self._deleted]:
                    for task in job.tasks:
                        task.container.kill()
                        task.container.wait()

    def _answer(self, request: JsonRequest) -> JsonAnswer:
        try:
            message = self._answered(request)
        except RunApiRefusal as refusal:
            error = {"code": refusal.code, "message": str(refusal), "status": refusal.status}
            return JsonAnswer({"error": error}, refusal.code)
        plain = getattr(type(message), "pb", lambda same: same)(message)
        return JsonAnswer(_json.MessageToDict(plain))

    def _answered(self, request: JsonRequest) -> Any:
        with self._lock:
            if self.outages:
                raise RunApiRefusal(self.outages.pop(0), "UNAVAILABLE", "The service is currently unavailable.")
        self._authenticate(request)
        for method, path, permission, handler in self._routes:
            matched = path.fullmatch(request.path)
            if matched is not None and method == request.method:
                self._authorize(permission, request.path)
                with self._lock:
                    return handler(request, **matched.groupdict())
        raise RunApiRefusal(404, "NOT_FOUND", f"There is no {request.method} of {request.path}.")

    def _authenticate(self, request: JsonRequest) -> None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            if kind != "Bearer":
                raise ValueError("no token is given")
            _jwt.decode(token, certs=self.public_key)
        except (ValueError, GoogleAuthError) as error:
            message = f"Request had invalid authentication credentials: {error}"
            raise RunApiRefusal(401, "UNAUTHENTICATED", message) from error

    def _authorize(self, permission: str, path: str) -> None:
        self.used.add(permission)
        if permission not in self.permissions:
            resource = path.removeprefix("/v2/").partition(":")[0]
            message = f"Permission '{permission}' denied on resource '{resource}' (or resource may not exist)."
            raise RunApiRefusal(403, "PERMISSION_DENIED", message)

    def _create(self, request: JsonRequest) -> Any:
        query = _query(request, "jobId", "validateOnly")
        job, name = _parsed(run_v2.Job, request.body), query.get("jobId", "")
        problems = job_problems(name, job, self.accounts)
        if problems:
            raise RunApiRefusal(400, "INVALID_ARGUMENT", f"Violation in CreateJobRequest: {'; '.join(problems)}")
        if job.template.template.node_selector.accelerator:
            raise RunApiRefusal(400, "FAILED_PRECONDITION", "You do not have quota for using GPUs in this region.")
        if job.template.template.containers[0].image != self.image:
            raise RunApiRefusal(400, "INVALID_ARGUMENT", "Image not found.")
        if name in self._jobs:
            raise RunApiRefusal(409, "ALREADY_EXISTS", f"Resource '{name}' already exists.")
        created = CloudRunJob(f"{PARENT}/jobs/{name}", job)
        if query.get("validateOnly") == "true":
            return self._begun(_Operation(lambda: True, created.shown), is_kept=False)
        self._jobs[name] = created
        done_at_s = time.time() + _CREATION_S
        return self._begun(_Operation(lambda: time.time() >= done_at_s, created.shown))

    def _known(self, job: str) -> CloudRunJob:
        if job not in self._jobs:
            raise RunApiRefusal(404, "NOT_FOUND", f"Resource '{job}' of kind 'JOB' does not exist.")
        return self._jobs[job]

    def _get(self, request: JsonRequest, job: str) -> Any:
        _query(request)
        return self._known(job).shown()

    def _run(self, request: JsonRequest, job: str) -> Any:
        _query(request)
        _parsed(run_v2.RunJobRequest, request.body)
        known = self._known(job)
        task = known.start(self.host, self.image_environment, self.pull_s)
        reference = f"{known.path}/executions/{task.execution}"
        return self._begun(_Operation(lambda: task.has_ended, lambda: run_v2.Execution(name=reference, job=job)))

    def _cancel(self, request: JsonRequest, job: str, execution: str) -> Any:
        _query(request)
        _parsed(run_v2.CancelExecutionRequest, request.body)
        known = self._known(job)
        found = [task for task in known.tasks if task.execution == execution]
        if not found:
            raise RunApiRefusal(404, "NOT_FOUND", f"Resource '{execution}' of kind 'EXECUTION' does not exist.")
        [task] = found
        if task.container.has_ended:
            raise RunApiRefusal(400, "FAILED_PRECONDITION", "The execution has already completed.")
        task.is_cancelled = True
        task.container.stop(self.grace_s)
        return self._begun(_Operation(lambda: task.has_ended, lambda: run_v2.Execution(name=execution, job=job)))

    def _delete(self, request: JsonRequest, job: str) -> Any:
        _query(request, "validateOnly", "etag")
        known = self._known(job)
        if any(not task.has_ended for task in known.tasks):
            raise RunApiRefusal(400, "FAILED_PRECONDITION", "The job has executions that run; cancel them first.")
        self._deleted.append(self._jobs.pop(job))
        return self._begun(_Operation(lambda: True, known.shown))

    def _list_tasks(self, request: JsonRequest, job: str, execution: str) -> Any:
        query = _query(request, "pageSize", "pageToken")
        known = self._known(job)
        tasks = [task for task in known.tasks if execution in ("-", task.execution)]
        if not tasks and execution != "-":
            raise RunApiRefusal(404, "NOT_FOUND", f"Resource '{execution}' of kind 'EXECUTION' does not exist.")
        begin, size = int(query.get("pageToken") or 0), int(query.get("pageSize") or 0) or 100
        shown = [known.shown_task(task) for task in tasks[begin : begin + size]]
        token = str(begin + size) if begin + size < len(tasks) else ""
        return run_v2.ListTasksResponse(tasks=shown, next_page_token=token)

    def _begun(self, operation: _Operation, *, is_kept: bool = True) -> Any:
        name = str(uuid.uuid4())
        if is_kept:
            self._operations[name] = operation
        return _shown(name, operation)

    def _operation(self, request: JsonRequest, operation: str) -> Any:
        _query(request)
        if operation not in self._operations:
            raise RunApiRefusal(404, "NOT_FOUND", f"Operation {operation} does not exist.")
        return _shown(operation, self._operations[operation])

    # What tests do, and look at

    def task_of(self, name: str) -> CloudRunTask:
        """Return the only task of a job."""
        with self._lock:
            [task] = self._jobs[name].tasks
            return task

    def container_of(self, name: str) -> RentedContainer:
        """Return the container of a job's only task."""
        return self.task_of(name).container

    def lose(self, name: str) -> None:
        """Let a job vanish at once, with its execution."""
        container = self.container_of(name)
        with self._lock:
            self._deleted.append(self._jobs.pop(name))
        container.kill()
        container.wait()

    def left_of(self, run: str) -> list[str]:
        """Name the jobs of a run that exist."""
        with self._lock:
            return [job.name for job in self._jobs.values() if job.run == run]

    def billed_usd(self, run: str) -> float:
        """Return what the ended instances of a run cost."""
        with self._lock:
            return sum(job.usd for job in [*self._jobs.values(), *self._deleted] if job.run == run)


def _query(request: JsonRequest, *known: str) -> Mapping[str, str]:
    """Return the parameters of a request; refuse unknown ones."""
    unknown = request.query.keys() - {*known, *_ALWAYS}
    if unknown:
        message = f'Invalid JSON payload received. Unknown name "{min(unknown)}": Cannot bind query parameter.'
        raise RunApiRefusal(400, "INVALID_ARGUMENT", message)
    return request.query


def _parsed(kind: Any, body: dict[str, Any]) -> Any:
    try:
        return kind.from_json(json.dumps(body), ignore_unknown_fields=False)
    except _json.ParseError as error:
        raise RunApiRefusal(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error


def _shown(name: str, operation: _Operation) -> Any:
    shown = _operations.Operation(name=f"{PARENT}/operations/{name}", done=operation.is_done())
    answer = operation.answer()
    packed = type(answer).pb(answer)
    shown.metadata.Pack(packed)
    if shown.done:
        shown.response.Pack(packed)
    return shown


def role_permissions(file: Path) -> list[str]:
    """Read the permissions of the role in a file for gcloud."""
    return list(_yaml.safe_load(file.read_text())["includedPermissions"])
