"""Members in a project of Google Cloud: their jobs are created, started, looked at and deleted."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from zooid.core.errors import InputError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit
from zooid.core.text import quoted
from zooid.platforms.cloud_run.google_requests import RunRefusal, RunRequests
from zooid.platforms.cloud_run.job_messages import job_message
from zooid.platforms.cloud_run.run_project import RunProject
from zooid.platforms.cloud_run.task_ends import exit_of_tasks
from zooid.platforms.provider import MemberOrder, resource_name

logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

_MAX_REQUESTS = 8
"""Number of jobs that are asked about at the same time."""
_CANCEL_S = 60.0
"""Seconds to wait for a cancelled execution, whose program has 10 s to end."""
_POLL_S = 0.5


@dataclass(frozen=True)
class _Look:
    """A job that exists, as it was found."""

    exit: Exit | None
    """How its member has ended; None if it has not, or is still to be started."""
    executions: frozenset[str]
    """Names of the executions that are to start or run."""


class CloudRunJobs:
    """The provider of members in one project and region."""

    def __init__(self, project: RunProject) -> None:
        self._project = project
        self._requests = RunRequests(project)
        self._created: set[str] = set()
        """Names of jobs that have existed. One of them that is missing now is gone."""
        self._settled: dict[str, Exit] = {}
        """How members ended whose jobs were deleted since."""

    def check(self, orders: Collection[MemberOrder]) -> None:
        for order in {order.offer.name: order for order in orders}.values():
            try:
                self._requests.create(order.resource, self._job(order), only_checks=True)
            except RunRefusal as error:
                raise InputError(f"members cannot be started on {order.offer.name}: {error}") from error

    def start(self, order: MemberOrder) -> None:
        created = self._requests.create(order.resource, self._job(order))
        if created is None:  # by an earlier call, perhaps of a process that has died before it started the job
            created = self._requests.job(order.resource)
        ready = _require_ready(created)
        self._settled.pop(order.resource, None)
        self._created.add(order.resource)
        if not ready.latest_created_execution.name:
            self._requests.run(order.resource)

    def _job(self, order: MemberOrder) -> Any:
        return job_message(order, self._project, self._requests.types)

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        found = self._for_each(run, titles, self._state)
        return {title: state[0] for title, state in found.items() if state is not None}

    def _state(self, name: str) -> tuple[Exit | None] | None:
        """Return how a member ended, or None in place of that while it runs; None if there is no such job."""
        look = self._look(name)
        if look is not None:
            return (look.exit,)
        if name not in self._created:
            return None
        return (self._settled.get(name) or Exit(None, reason="was lost: its job does not exist any more"),)

    def _look(self, name: str) -> _Look | None:
        """Ask how a job is; None if it does not exist."""
        tasks = self._requests.tasks(name)
        if tasks:
            running = frozenset(task.execution for task in tasks if task.completion_time is None)
            look = _Look(exit_of_tasks(tasks), running)
        else:
            job = self._requests.job(name)
            if job is None:
                return None
            look = _look_without_tasks(job.latest_created_execution)
        self._created.add(name)
        return look

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        ended = self._for_each(run, titles, self._remove)
        return [title for title, is_gone in ended.items() if not is_gone]

    def _remove(self, name: str) -> bool:
        """Cancel what runs of a job, remember how it ended, and delete the job; False if it is still there."""
        deadline_s = time.monotonic() + _CANCEL_S
        cancelled: set[str] = set()
        try:
            look = self._look(name)
            while look is not None and look.executions:
                for execution in look.executions - cancelled:
                    self._cancel(name, execution)
                cancelled |= look.executions
                if time.monotonic() > deadline_s:
                    return False
                time.sleep(_POLL_S)
                look = self._look(name)
            if look is not None:
                self._settled[name] = look.exit or Exit(None)
                self._requests.delete(name)
        except ZooidError as error:
            logger.warning("%s could not be removed: %s", name, error)
            return False
        return True

    def _cancel(self, name: str, execution: str) -> None:
        try:
            self._requests.cancel(name, execution)
        except RunRefusal:
            look = self._look(name)  # Cloud Run refuses to cancel what has ended meanwhile
            if look is not None and execution in look.executions:
                raise

    def _for_each(self, run: str, titles: Collection[str], ask: Callable[[str], _Answer]) -> dict[str, _Answer]:
        """Ask about the jobs of several members at the same time."""
        if not titles:
            return {}
        ordered = sorted(titles)
        with ThreadPoolExecutor(min(len(ordered), _MAX_REQUESTS)) as threads:
            answers = threads.map(ask, [resource_name(run, title) for title in ordered])
            return dict(zip(ordered, answers, strict=True))

    def num_free(self, offer: Offer) -> int | None:
        return None  # quotas are another service's, and Cloud Run names the one that is exceeded

    def close(self) -> None:
        self._requests.close()


def _look_without_tasks(execution: Any) -> _Look:
    """Return how a job is from its latest execution, which may have no tasks yet, or never get any."""
    if not execution.name:
        return _Look(None, frozenset())
    if execution.completion_time is None:
        return _Look(None, frozenset([execution.name]))
    reason = "could not be started: Cloud Run has ended its execution before its task began"
    return _Look(Exit(None, ran_s=0.0, billed_s=0.0, reason=reason), frozenset())


def _require_ready(job: Any | None) -> Any:
    """Return a job; ZooidError if Cloud Run could not make it ready, as without its image."""
    if job is None:
        raise ZooidError("its job was deleted while it was created; start it again")
    condition = job.terminal_condition
    if getattr(condition.state, "name", "") == "CONDITION_FAILED":
        raise ZooidError(f"Cloud Run says: {quoted(str(condition.message))}")
    return job
