"""What Azure says about the executions of a job of Container Apps."""

import math
import re
from collections.abc import Iterator, Sequence

from azure.mgmt.appcontainers.models import ContainerExecutionStatus, JobExecution

from zooid.core.runs.member_records import Exit
from zooid.core.text import quoted

_GIB = 2**30
_MEMORY = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)Gi")
UNFINISHED = ("Running", "Processing", "Unknown", "Degraded")
"""States of an execution that has not ended."""
_KILLED = 128
_OUT_OF_MEMORY = "OOMKilled"
_OUT_OF_TIME = "DeadlineExceeded"


def exit_of_executions(executions: Sequence[JobExecution]) -> Exit | None:
    """Return how a job has ended; None if it is still to be started, or runs.

    A request to start it may have been sent twice. The second execution finds that the member was started, and ends.
    """
    if not executions or any(execution.status in UNFINISHED for execution in executions):
        return None
    exits = [_exit_of_execution(execution) for execution in executions]
    billed_s = [end.billed_s for end in exits if end.billed_s is not None]
    longest = max(exits, key=lambda end: end.billed_s or 0.0)
    total_s = math.fsum(billed_s) if len(billed_s) == len(exits) else None
    return Exit(longest.status, longest.exceeded_bytes, ran_s=longest.ran_s, billed_s=total_s, reason=longest.reason)


def _exit_of_execution(execution: JobExecution) -> Exit:
    begun, ended = execution.start_time, execution.end_time
    # Azure bills a replica while it runs; the nearest that it tells are the times of its execution
    billed_s = None if begun is None or ended is None else max(0.0, (ended - begun).total_seconds())
    containers = list(_containers(execution))
    codes = [container.code for container in containers if container.code is not None]
    said = " ".join(filter(None, (execution.reason, execution.message)))
    status: int | None = 0 if execution.status == "Succeeded" else next(iter(codes), None)
    if status is not None and status > _KILLED:
        status = _KILLED - status
    reason = ""
    if execution.status == "Stopped":
        status, reason = None, "was stopped by a request to Azure"
    elif _OUT_OF_TIME in said:
        reason = "was ended by Azure, because its time was over"
    elif status is None:
        reason = f"failed: {quoted(said or 'Azure does not say why')}"
    words = [said, *(f"{container.status} {container.additional_information}" for container in containers)]
    exceeded_bytes = _memory_bytes(execution) if any(_OUT_OF_MEMORY in text for text in words) else None
    return Exit(status, exceeded_bytes, ran_s=billed_s, billed_s=billed_s, reason=reason)


def _containers(execution: JobExecution) -> Iterator[ContainerExecutionStatus]:
    detailed = execution.detailed_status
    for replica in (detailed.replicas if detailed is not None else None) or []:
        yield from replica.containers or []


def _memory_bytes(execution: JobExecution) -> int | None:
    """Return the memory limit of an execution, which its template repeats; None if it does not."""
    for container in (execution.template.containers if execution.template is not None else None) or []:
        memory = container.resources.memory if container.resources is not None else None
        matched = _MEMORY.fullmatch(memory or "")
        if matched is not None:
            return round(float(matched[1]) * _GIB)
    return None
