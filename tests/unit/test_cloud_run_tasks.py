"""What Google's messages about tasks say about their members."""

import datetime
import json
import signal
from typing import Any

import pytest
from google.cloud import run_v2

from zooid.core.runs.member_records import Exit
from zooid.platforms.cloud_run.task_ends import exit_of_task, exit_of_tasks

BEGUN = datetime.datetime(2026, 3, 1, 10, 0, tzinfo=datetime.UTC)
ENDED = BEGUN + datetime.timedelta(seconds=90)
TIMES: dict[str, Any] = {"ran_s": 90.0, "billed_s": 90.0}
State, Reason = run_v2.Condition.State, run_v2.Condition.ExecutionReason


def a_task(words: str = "", reason: Any = 0, status: str = "", **result: int) -> run_v2.Task:
    resources = run_v2.ResourceRequirements(limits={"cpu": "1", "memory": "512Mi"})
    state = State.CONDITION_FAILED if words else State.CONDITION_SUCCEEDED
    return run_v2.Task(
        containers=[run_v2.Container(resources=resources)],
        timeout={"seconds": 600},
        start_time=BEGUN,
        completion_time=ENDED,
        conditions=[
            run_v2.Condition(type_="Started", state=State.CONDITION_SUCCEEDED),
            run_v2.Condition(type_="Completed", state=state, message=words, execution_reason=reason),
        ],
        last_attempt_result={"status": {"message": status}, **result},
    )


def test_a_member_that_ends_tells_how_itself_and_is_billed_for_its_instance() -> None:
    assert exit_of_task(a_task()) == Exit(None, **TIMES)
    ended = a_task("The container exited with an error.", Reason.NON_ZERO_EXIT_CODE, exit_code=7)
    assert exit_of_task(ended) == Exit(None, **TIMES)


def test_too_much_memory_names_the_limit() -> None:
    found = exit_of_task(a_task("Memory limit of 512 MiB exceeded with 530 MiB used. Consider increasing it."))
    assert found == Exit(-signal.SIGKILL, exceeded_bytes=512 * 2**20, **TIMES)
    assert str(found) == "was ended by the kernel: it used more than its 536.9 MB of memory"


def test_a_timeout_names_the_time() -> None:
    found = exit_of_task(a_task("The configured timeout was reached.", term_signal=9))
    assert str(found) == "was ended by Cloud Run, because its 600 s were over"


def test_a_signal_and_a_cancellation_are_told() -> None:
    killed = a_task("Container terminated on signal 9.", term_signal=9)
    assert exit_of_task(killed) == Exit(-9, reason="", **TIMES)
    assert str(exit_of_task(a_task("Task was cancelled.", Reason.CANCELLED))) == "was cancelled in Cloud Run"


def test_other_words_are_passed_on() -> None:
    lost = a_task("The instance was lost\x1b[2J in maintenance.")
    assert str(exit_of_task(lost)).startswith("is lost: Cloud Run says: The instance was lost")
    assert "\x1b" not in str(exit_of_task(lost))
    assert "no machine" in str(exit_of_task(a_task(status="there is no machine")))


def test_a_task_that_never_began_costs_nothing() -> None:
    task = a_task("Image could not be pulled.")
    task.start_time = None
    assert exit_of_task(task).billed_s == 0.0


def test_a_member_that_was_started_twice_lives_until_both_tasks_have_ended() -> None:
    """The second task finds that the member was started, and ends at once; both are billed."""
    running, refused = a_task(), a_task()
    running.completion_time = None
    refused.completion_time = BEGUN + datetime.timedelta(seconds=2)
    assert exit_of_tasks([running, refused]) is None
    first = a_task("Container terminated on signal 9.", term_signal=9)
    assert exit_of_tasks([refused, first]) == Exit(-9, ran_s=90.0, billed_s=92.0)


HOSTILE = [
    {},
    {"conditions": [{"type": "Completed", "state": 99, "executionReason": 99, "message": "x"}]},
    {"conditions": [{"type": "Completed", "state": "CONDITION_FAILED", "message": "Memory limit"}], "containers": []},
    {"containers": [{"resources": {"limits": {"memory": "9" * 100 + "Gi"}}}]},
    {"containers": [{"resources": {"limits": {"memory": "1.5Gi"}}}], "conditions": []},
    {"startTime": "2026-03-01T11:00:00Z"},
    {"lastAttemptResult": {"termSignal": 2**31 - 1}},
    {"conditions": [{"type": "Completed", "state": "CONDITION_FAILED", "message": "timed out"}]},
]


@pytest.mark.parametrize("fields", HOSTILE)
@pytest.mark.filterwarnings("ignore:Unrecognized")
def test_strange_answers_still_tell_that_the_member_has_ended(fields: dict[str, Any]) -> None:
    plain = {"completionTime": "2026-03-01T10:01:30Z", **fields}
    found = exit_of_tasks([run_v2.Task.from_json(json.dumps(plain))])
    assert found is not None
    assert found.billed_s is not None
    assert found.billed_s >= 0
    assert len(str(found)) < 300
