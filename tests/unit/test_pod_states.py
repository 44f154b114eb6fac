"""What pods in every state say about their members."""

import signal
from typing import Any

import pytest

from zooid.core.runs.member_records import Exit
from zooid.platforms.kubernetes.pod_states import exit_of_pod, obstacle_of_pod

LIMIT = 512 * 2**20
TIMES = {"startedAt": "2026-03-01T10:00:00Z", "finishedAt": "2026-03-01T10:01:30Z"}


def a_pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    statuses = {} if state is None else {"containerStatuses": [{"name": "member", "image": "a/b:1", "state": state}]}
    return {
        "metadata": {"name": "pod", "labels": {}},
        "spec": {"nodeName": "node7", "containers": [{"resources": {"limits": {"memory": str(LIMIT)}}}]},
        "status": {"phase": phase, **statuses, **status},
    }


def ended(code: int, reason: str = "", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), **TIMES, **more}}


def disrupted(reason: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("Pending"),
        a_pod("Pending", {"waiting": {"reason": "ContainerCreating"}}),
        a_pod("Running", {"running": {"startedAt": TIMES["startedAt"]}}),
        a_pod("Unknown", {"running": {"startedAt": TIMES["startedAt"]}}),
        a_pod("Running", {"running": {}}, conditions=disrupted("EvictionByEvictionAPI")),
    ],
)
def test_a_pod_that_may_go_on_has_no_end(pod: dict[str, Any]) -> None:
    assert exit_of_pod(pod) is None


def test_a_member_that_ends_tells_how_itself_and_is_billed_for_its_container() -> None:
    assert exit_of_pod(a_pod("Succeeded", ended(0))) == Exit(None, ran_s=90.0, billed_s=90.0)
    assert exit_of_pod(a_pod("Failed", ended(137))) == Exit(-signal.SIGKILL, ran_s=90.0, billed_s=90.0)


def test_too_much_memory_names_the_limit() -> None:
    found = exit_of_pod(a_pod("Failed", ended(137, "OOMKilled")))
    assert found == Exit(-signal.SIGKILL, exceeded_bytes=LIMIT, ran_s=90.0, billed_s=90.0)
    assert str(found) == "was ended by the kernel: it used more than its 536.9 MB of memory"


@pytest.mark.parametrize("state", [None, ended(143)])
def test_a_deadline_names_the_time(state: dict[str, Any] | None) -> None:
    found = exit_of_pod(a_pod("Failed", state, reason="DeadlineExceeded"), 20.0)
    assert str(found) == "was ended, because its 20 s were over"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"reason": "Evicted"}, "was evicted from its node node7, which lacked memory or disk"),
        ({"reason": "Terminated"}, "is lost with its node node7, which was shut down"),
        ({"conditions": disrupted("PreemptionByScheduler")}, "was preempted: its node node7 was needed for a pod"),
        ({"conditions": disrupted("EvictionByEvictionAPI")}, "is lost with its node node7, which was drained"),
        ({"conditions": disrupted("SomethingNew")}, "was ended by its node node7"),
        ({"reason": "UnexpectedAdmissionError", "message": "no GPU"}, "is lost with its pod: UnexpectedAdmissionError"),
    ],
)
def test_a_lost_pod_says_how_it_was_lost(status: dict[str, Any], words: str) -> None:
    assert str(exit_of_pod(a_pod("Failed", **status))).startswith(words)


def test_a_pod_on_a_silent_node_is_only_assumed_to_have_ended() -> None:
    pod = a_pod("Running", {"running": {}}, conditions=disrupted("DeletionByTaintManager"))
    assert exit_of_pod(pod) is None, "it may come back"
    pod["metadata"]["deletionTimestamp"] = TIMES["finishedAt"]
    found = exit_of_pod(pod)
    assert found is not None
    assert found.is_assumed
    assert str(found) == "is lost with its node node7, which does not answer or must be left"


def test_a_program_that_cannot_be_executed_is_no_member() -> None:
    found = exit_of_pod(a_pod("Failed", ended(128, "StartError", message='exec: "python9": not found')))
    assert str(found) == 'could not be started: exec: "python9": not found'


@pytest.mark.parametrize(
    ("pod", "words", "is_soon"),
    [
        (a_pod("Running", {"running": {}}), None, False),
        (a_pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), None, False),
        (
            a_pod(
                "Pending",
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ],
            ),
            "no node has room for it: 0/3 nodes",
            False,
        ),
        (
            a_pod("Pending", {"waiting": {"reason": "InvalidImageName", "message": "bad"}}),
            "its image a/b:1 cannot be pulled (InvalidImageName): bad",
            True,
        ),
        (
            a_pod("Pending", {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}),
            "its container cannot be made (CreateContainerConfigError): no secret",
            False,
        ),
    ],
)
def test_what_keeps_a_member_from_starting(pod: dict[str, Any], words: str | None, is_soon: bool) -> None:
    found = obstacle_of_pod(pod)
    assert (None if found is None else found.words) == words
    assert (found is not None and found.patience_s == 0.0) == is_soon


def test_words_of_a_cluster_cannot_control_a_terminal() -> None:
    pod = a_pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": "\x1b[2Jfine"}})
    found = obstacle_of_pod(pod)
    assert found is not None
    assert "\x1b" not in found.words
