"""What the state of a pod says about its member: how it ended, or why it cannot start.

Pods are dictionaries, as the API server sends them.
"""

import datetime
import signal
from dataclasses import dataclass
from typing import Any

from zooid.core.runs.member_records import Exit
from zooid.core.text import quoted

_KILLED = 128 + signal.SIGKILL
"""Exit code of a container whose program was killed."""
_BROKEN = {
    "InvalidImageName": 0.0,
    "ErrImageNeverPull": 0.0,
    "ErrImagePull": 60.0,
    "ImagePullBackOff": 60.0,
    "CreateContainerConfigError": 60.0,
    "CreateContainerError": 60.0,
    "RunContainerError": 60.0,
}
"""Reasons why a container waits that only a person can fix, and the seconds before it is given up."""
UNSCHEDULABLE_S = 600.0
"""Seconds for which no node may have room for a member. A cluster that grows needs minutes for a new node."""
_LOST = {
    "Evicted": "was evicted from its node, which lacked memory or disk",
    "NodeLost": "is lost with its node",
    "Shutdown": "is lost with its node, which was shut down",
    "Terminated": "is lost with its node, which was shut down",
    "NodeShutdown": "is lost with its node, which was shut down",
    "PreemptionByScheduler": "was preempted: its node was needed for a pod of higher priority",
    "DeletionByTaintManager": "is lost with its node, which does not answer or must be left",
    "EvictionByEvictionAPI": "is lost with its node, which was drained",
    "DeletionByPodGC": "is lost with its node, which is gone",
    "TerminationByKubelet": "was ended by its node, which was shut down or lacked memory or disk",
}
"""How a pod was lost, by the reason of the pod or of its condition DisruptionTarget."""
_OUT_OF_REACH = ("NodeLost", "DeletionByTaintManager", "DeletionByPodGC")
"""Reasons with which nobody can tell whether the container still runs."""


@dataclass(frozen=True)
class Obstacle:
    """Why a member does not start."""

    words: str
    patience_s: float
    """Seconds after which it is hopeless."""


def title_of_pod(pod: dict[str, Any], label: str) -> str:
    """Return the member whose pod this is; empty if it is nobody's."""
    return str(pod.get("metadata", {}).get("labels", {}).get(label, ""))


def exit_of_pod(pod: dict[str, Any], lifetime_s: float | None = None) -> Exit | None:
    """Return how the member of a pod ended; None while it may still run or start.

    `lifetime_s` is the time after which the cluster ends the pod. What the member has recorded itself says more than
    this, but not for how long it is billed.
    """
    status = pod.get("status", {})
    container = _container_status(status)
    terminated = (container.get("state") or {}).get("terminated")
    lost = _lost_reason(pod)
    if terminated is None:
        if lost in _OUT_OF_REACH and pod.get("metadata", {}).get("deletionTimestamp"):
            return Exit(None, reason=_lost_words(lost, pod), is_assumed=True)
        return _failed(pod, lost, lifetime_s) if status.get("phase") in ("Failed", "Succeeded") else None
    billed_s = _billed_s(terminated)
    if terminated.get("reason") == "OOMKilled":
        limit_bytes = _memory_limit(pod)
        return Exit(-signal.SIGKILL, exceeded_bytes=limit_bytes, ran_s=billed_s, billed_s=billed_s)
    if status.get("reason") == "DeadlineExceeded":
        return Exit(-signal.SIGKILL, ran_s=billed_s, billed_s=billed_s, reason=_deadline_words(lifetime_s))
    if lost:
        return Exit(None, ran_s=billed_s, billed_s=billed_s, reason=_lost_words(lost, pod))
    return _finished(terminated, billed_s)


def obstacle_of_pod(pod: dict[str, Any]) -> Obstacle | None:
    """Return why the container of a pod does not run; None if nothing hinders it."""
    status = pod.get("status", {})
    if status.get("phase") != "Pending":
        return None
    for condition in status.get("conditions") or []:
        is_unscheduled = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_unscheduled and condition.get("reason") == "Unschedulable":
            words = quoted(str(condition.get("message") or "no node fits"))
            return Obstacle(f"no node has room for it: {words}", UNSCHEDULABLE_S)
    container = _container_status(status)
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    if reason not in _BROKEN:
        return None
    message = quoted(str(waiting.get("message") or ""))
    image = quoted(str(container.get("image", "")))
    if "Image" in reason:
        return Obstacle(f"its image {image} cannot be pulled ({reason}): {message}", _BROKEN[reason])
    return Obstacle(f"its container cannot be made ({reason}): {message}", _BROKEN[reason])


def _container_status(status: dict[str, Any]) -> dict[str, Any]:
    found = status.get("containerStatuses") or [{}]
    return dict(found[0])


def _finished(terminated: dict[str, Any], billed_s: float | None) -> Exit:
    """Return the exit of a container that has ended by itself: its member has recorded how, if it began."""
    code = int(terminated.get("exitCode", 0))
    if terminated.get("reason") in ("ContainerCannotRun", "StartError"):
        words = quoted(str(terminated.get("message") or "its command cannot be executed"))
        return Exit(None, ran_s=billed_s, billed_s=billed_s, reason=f"could not be started: {words}")
    if code == _KILLED:
        return Exit(-signal.SIGKILL, ran_s=billed_s, billed_s=billed_s)
    return Exit(None, ran_s=billed_s, billed_s=billed_s)


def _failed(pod: dict[str, Any], lost: str, lifetime_s: float | None) -> Exit:
    """Return the exit of a pod that has ended without telling how its container did."""
    status = pod.get("status", {})
    if status.get("reason") == "DeadlineExceeded":
        return Exit(-signal.SIGKILL, reason=_deadline_words(lifetime_s))
    if lost:
        return Exit(None, reason=_lost_words(lost, pod))
    said = quoted(f"{status.get('reason') or status.get('phase')} {status.get('message') or ''}".strip())
    return Exit(None, reason=f"is lost with its pod: {said}")


def _lost_reason(pod: dict[str, Any]) -> str:
    """Return the reason for which the cluster took a pod away; empty if it did not."""
    status = pod.get("status", {})
    if status.get("reason") in _LOST:
        return str(status["reason"])
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = str(condition.get("reason", ""))
            return reason if reason in _LOST else "TerminationByKubelet"
    return ""


def _lost_words(reason: str, pod: dict[str, Any]) -> str:
    node = quoted(str(pod.get("spec", {}).get("nodeName") or ""))
    return _LOST[reason].replace("its node", f"its node {node}" if node else "its node", 1)


def _deadline_words(lifetime_s: float | None) -> str:
    return (
        "was ended, because its time was over"
        if lifetime_s is None
        else (f"was ended, because its {lifetime_s:g} s were over")
    )


def _memory_limit(pod: dict[str, Any]) -> int | None:
    containers = pod.get("spec", {}).get("containers") or [{}]
    limit = str(containers[0].get("resources", {}).get("limits", {}).get("memory", ""))
    return int(limit) if limit.isdecimal() else None


def _billed_s(terminated: dict[str, Any]) -> float | None:
    """Return for how long a container existed. Kubernetes tells whole seconds."""
    try:
        began, ended = (
            datetime.datetime.fromisoformat(str(terminated[field])) for field in ("startedAt", "finishedAt")
        )
    except (KeyError, ValueError):
        return None
    return max(0.0, (ended - began).total_seconds())
