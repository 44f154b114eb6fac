"""Requests to Cloud Run through Google's own client, which is imported only here and only when it is needed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from zooid.core.errors import InputError, ZooidError
from zooid.core.text import quoted
from zooid.platforms.cloud_run.run_project import RunProject

_TIMEOUT_S = 30.0
"""Maximum time of one request, and of all its repetitions after transient errors."""
_OPERATION_S = 180.0
"""Maximum time of an operation, such as the creation of a job, for which Cloud Run checks the image."""
_POLL_S = 0.5
_MODULES = (
    "google.cloud.run_v2",
    "google.api_core.exceptions",
    "google.api_core.retry",
    "google.auth",
    "google.auth.exceptions",
    "google.protobuf.json_format",
)


class RunRefusal(ZooidError):
    """Cloud Run has refused a request, and will do so again."""


class RunRequests:
    """Requests in one project and region. All methods may be called from several threads.

    A request is repeated after a transient error. So a job may be run twice, and have two executions.
    """

    def __init__(self, project: RunProject) -> None:
        self._project = project
        self._run, self._errors, retry, login, self._login_errors, self._json = _imported_sdk()
        self._how = {"timeout": _TIMEOUT_S, "retry": retry.Retry(initial=_POLL_S, timeout=_TIMEOUT_S)}
        options = {"api_endpoint": project.endpoint} if project.endpoint else {}
        with self._failures_in_words():
            given, _ = login.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
            how = {"credentials": given, "transport": "rest", "client_options": options}
            self._jobs = self._run.JobsClient(**how)
            self._executions = self._run.ExecutionsClient(**how)
            self._tasks = self._run.TasksClient(**how)

    @property
    def types(self) -> Any:
        """The module with the messages of Cloud Run."""
        return self._run

    def create(self, name: str, job: Any, *, only_checks: bool = False) -> Any | None:
        """Create a job, and return it as it is then; None if it exists. Or only let Cloud Run check it."""
        request = {"parent": self._project.parent, "job": job, "job_id": name, "validate_only": only_checks}
        with self._failures_in_words():
            try:
                operation = self._jobs.create_job(request=request, **self._how)
                return None if only_checks else self._finished(operation)
            except self._errors.Conflict:
                return None

    def run(self, name: str) -> None:
        """Start a job, without waiting for it."""
        with self._failures_in_words():
            self._jobs.run_job(request={"name": self._path(name)}, **self._how)

    def job(self, name: str) -> Any | None:
        """Return a job; None if there is none of this name."""
        found = self._found(lambda: self._jobs.get_job(request={"name": self._path(name)}, **self._how))
        if found is not None and not found.name:
            raise ZooidError("Cloud Run gives no answer that can be used: a job without a name; try again")
        return found

    def tasks(self, name: str) -> list[Any]:
        """Return the tasks of all executions of a job; none if the job does not exist."""
        request = {"parent": f"{self._path(name)}/executions/-"}
        return self._found(lambda: list(self._tasks.list_tasks(request=request, **self._how))) or []

    def cancel(self, name: str, execution: str) -> None:
        """Stop an execution: its program gets SIGTERM, and 10 seconds later SIGKILL."""
        path = execution if "/" in execution else f"{self._path(name)}/executions/{execution}"
        self._found(lambda: self._executions.cancel_execution(request={"name": path}, **self._how))

    def delete(self, name: str) -> None:
        """Delete a job with its executions; it may be gone already."""
        request = {"name": self._path(name)}
        self._found(lambda: self._finished(self._jobs.delete_job(request=request, **self._how)))

    def close(self) -> None:
        for client in (self._jobs, self._executions, self._tasks):
            client.transport.close()

    def _path(self, name: str) -> str:
        return f"{self._project.parent}/jobs/{name}"

    def _finished(self, operation: Any) -> Any:
        """Wait for the end of an operation, and return its result."""
        deadline_s = time.monotonic() + _OPERATION_S
        while not operation.done():
            if time.monotonic() > deadline_s:
                raise ZooidError(f"Cloud Run has not finished an operation in {_OPERATION_S:g} s; it may be overloaded")
            time.sleep(_POLL_S)
        return operation.result()

    def _found(self, request: Callable[[], Any]) -> Any | None:
        """Return the answer to a request; None if what it asks for does not exist."""
        with self._failures_in_words():
            try:
                return request()
            except self._errors.NotFound:
                return None

    @contextmanager
    def _failures_in_words(self) -> Iterator[None]:
        try:
            yield
        except (self._login_errors.TransportError, OSError) as error:
            raise ZooidError(f"Google Cloud cannot be reached: {quoted(str(error))}; check your network") from error
        except self._login_errors.GoogleAuthError as error:
            raise InputError(
                f"Google Cloud accepts no login: {quoted(str(error))}; log in with: gcloud auth application-default "
                "login, or set GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
        except self._errors.GoogleAPICallError as error:
            advice = ""
            if isinstance(error, self._errors.Forbidden):
                advice = "; docs/cloud-run-role.yaml has the role that zooid needs"
            is_lasting = isinstance(error, self._errors.ClientError)
            is_lasting = is_lasting and not isinstance(error, self._errors.TooManyRequests)
            kind = RunRefusal if is_lasting else ZooidError
            raise kind(f"Cloud Run says: {quoted(str(error.message))}{advice}") from error
        except (self._errors.GoogleAPIError, self._json.Error) as error:
            raise ZooidError(f"Cloud Run gives no answer that can be used: {quoted(str(error))}; try again") from error


def _imported_sdk() -> list[Any]:
    try:
        return [import_module(name) for name in _MODULES]
    except ImportError as error:
        raise InputError(
            f"members on Cloud Run need Google's client, which cannot be imported ({error}): pip install 'zooid[gcp]'"
        ) from error
