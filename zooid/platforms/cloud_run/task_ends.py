"""What Cloud Run says about the ends of a member's tasks."""

import math
import re
import signal
from collections.abc import Sequence
from typing import Any

from zooid.core.runs.member_records import Exit
from zooid.core.text import quoted

_MEMORY = re.compile(r"memory limit", re.IGNORECASE)
_TIMEOUT = re.compile(r"configured timeout|timed? ?out", re.IGNORECASE)
_OWN_EXIT = re.compile(r"container exited", re.IGNORECASE)
"""Words with which Cloud Run tells apart why a task has failed; it has no codes for that."""
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}


def exit_of_tasks(tasks: Sequence[Any]) -> Exit | None:
    """Return how a member has ended that has these tasks; None if one of them has not ended.

    A job that was run twice has two tasks. The second one finds that the member was started, and ends at once.
    """
    if any(task.completion_time is None for task in tasks):
        return None
    exits = [exit_of_task(task) for task in tasks]
    longest = max(exits, key=lambda end: end.billed_s or 0.0)
    billed_s = math.fsum(end.billed_s or 0.0 for end in exits)
    return Exit(longest.status, longest.exceeded_bytes, ran_s=longest.ran_s, billed_s=billed_s, reason=longest.reason)


def exit_of_task(task: Any) -> Exit:
    """Return how the member of a task that has ended did so. What the member has recorded itself says more."""
    billed_s = _billed_s(task)
    times: dict[str, Any] = {"ran_s": billed_s, "billed_s": billed_s}
    words = _words(task)
    if _MEMORY.search(words):
        return Exit(-signal.SIGKILL, exceeded_bytes=_memory_limit(task), **times)
    if _TIMEOUT.search(words):
        limit_s = 0.0 if task.timeout is None else task.timeout.total_seconds()
        return Exit(-signal.SIGKILL, reason=f"was ended by Cloud Run, because its {limit_s:g} s were over", **times)
    if any(_name(condition.execution_reason) == "CANCELLED" for condition in task.conditions):
        return Exit(None, reason="was cancelled in Cloud Run", **times)
    if task.last_attempt_result.term_signal:
        return Exit(-int(task.last_attempt_result.term_signal), **times)
    if not words or _OWN_EXIT.search(words):
        return Exit(None, **times)
    return Exit(None, reason=f"is lost: Cloud Run says: {quoted(words)}", **times)


def _billed_s(task: Any) -> float:
    """Return how long the instance of a task ran, which is billed; 0 if it never started."""
    if task.start_time is None:
        return 0.0
    return max(0.0, float((task.completion_time - task.start_time).total_seconds()))


def _words(task: Any) -> str:
    """Return why a task has failed; empty if it has not, or if that is not told."""
    for condition in task.conditions:
        if condition.type_ == "Completed" and _name(condition.state) == "CONDITION_FAILED" and condition.message:
            return str(condition.message)
    return str(task.last_attempt_result.status.message)


def _name(value: Any) -> str:
    """Return the name of an enumeration's value; empty for one that the installed client does not know."""
    return str(getattr(value, "name", ""))


def _memory_limit(task: Any) -> int | None:
    limit = str(task.containers[0].resources.limits.get("memory", "")) if task.containers else ""
    found = re.fullmatch(r"([0-9]{1,18})([A-Za-z]*)", limit)
    return None if found is None or found[2] not in _UNITS else int(found[1]) * _UNITS[found[2]]
