"""What SkyPilot prints is read strictly, and what is wrong with its command or a task is said before a start."""

from pathlib import Path

import pytest

from zooid.catalog import offer
from zooid.catalog.provider_accounts import Account
from zooid.catalog.sky_machines import sky_machine
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.platforms.provider import START_VARIABLE, MemberOrder
from zooid.platforms.skypilot import skypilot_platform
from zooid.platforms.skypilot.sky_command import SkyAnswer, SkyCommand, SkyFailed
from zooid.platforms.skypilot.sky_rows import (
    ClusterRow,
    CostRow,
    RequestRow,
    TaskRow,
    UnreadableAnswer,
    cluster_rows,
    cost_rows,
    job_rows,
    request_id,
    request_rows,
)
from zooid.platforms.skypilot.sky_tasks import sky_task

ID = "0b8a1f4e-9c1d-4f5e-8a6b-2d3c4e5f6a7b"


def test_clusters_are_found_behind_what_else_is_printed() -> None:
    rows = '[\n  {"name": "a", "status": "UP", "nodes": 1}\n]\n'
    text = f"Refreshing status of 2 clusters\n\x1b[33m[a warning]\x1b[0m\n{rows}"
    assert cluster_rows(text) == [ClusterRow("a", "UP")]
    assert cluster_rows("[]\n") == []


def test_requests_tell_whether_they_launch_and_how_they_ended() -> None:
    statuses = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
    rows = request_rows(
        str([{"request_id": "1", "name": "sky.launch", "status": each} for each in statuses]).replace("'", '"')
    )
    assert [row.has_failed for row in rows] == [False, False, False, True, True]
    assert [row.has_succeeded for row in rows] == [False, False, True, False, False]
    assert rows[0].is_launch
    assert not RequestRow("1", "sky.status", "RUNNING").is_launch


def test_tasks_are_listed_of_those_clusters_that_answer() -> None:
    text = (
        "Failed to get the job queue for cluster 'b'.\n  [Errno 110] timed out\n"
        '{\n  "a": [{"job_id": 1, "status": "FAILED_SETUP"}, {"job_id": 2, "status": "RUNNING"}]\n}\n'
    )
    first, second = job_rows(text)["a"]
    assert (first, second) == (TaskRow(1, "FAILED_SETUP"), TaskRow(2, "RUNNING"))
    assert (first.has_failed, first.has_ended) == (True, True)
    assert (second.has_failed, second.has_ended) == (False, False)
    assert TaskRow(1, "SUCCEEDED").has_ended


def test_costs_are_read_by_time() -> None:
    assert cost_rows('[{"name": "a", "duration": 61, "total_cost": 0.1}]') == [CostRow("a", 61.0)]


@pytest.mark.parametrize(
    "text", ["", "Clusters\nNAME  STATUS\na  UP", '[{"name": "a"}]', '[{"name": "a", "status": 1}]']
)
def test_an_answer_that_is_not_understood_is_shown(text: str) -> None:
    with pytest.raises(
        UnreadableAnswer, match=r"(?s)SkyPilot's answer is not understood \(.+\): .*; zooid knows 0\.14\.1"
    ):
        cluster_rows(text)


def test_the_id_of_a_request_is_found_in_words() -> None:
    assert (
        request_id(f"\x1b[32mSubmitted sky.launch request: {ID}\x1b[0m\nCheck logs with: sky api logs {ID[:8]}\n") == ID
    )
    with pytest.raises(UnreadableAnswer, match="`sky launch` names no request: all is well"):
        request_id("all is well")


def test_the_last_words_of_a_failure_are_in_one_line_and_harmless() -> None:
    answer = SkyAnswer("one\ntwo\n\x1b[31mthree\x1b[0m\n", "⚙︎ four\rfive\n\n", 1)
    assert answer.last_words == "three ⚙︎ four five"
    assert SkyAnswer("\n", " ", 7).last_words == "status 7"


def test_a_missing_command_says_how_to_install_and_name_it(tmp_path: Path) -> None:
    sky = SkyCommand.of(Account("skypilot", "machines.toml", {"command": str(tmp_path / "sky")}))
    with pytest.raises(InputError) as raised:
        sky.give(["status"])
    assert str(raised.value) == (
        f"there is no command '{tmp_path}/sky', with which SkyPilot rents machines. It needs an environment of its "
        "own: install it with `python3 -m venv ~/sky && ~/sky/bin/pip install 'skypilot[aws,gcp,azure]'`, and write a "
        "table [skypilot] with command = '~/sky/bin/sky' into machines.toml"
    )


def program(tmp_path: Path, script: str) -> SkyCommand:
    file = tmp_path / "sky"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return SkyCommand(str(file), "machines.toml")


def test_a_command_that_fails_is_told_with_what_it_says(tmp_path: Path) -> None:
    sky = program(tmp_path, 'echo "No cloud is enabled." >&2; exit 1')
    with pytest.raises(SkyFailed, match=r"`sky status` has failed: No cloud is enabled\."):
        sky.give(["status"])
    assert sky.answer(["status"]).status == 1


def test_the_command_gets_its_arguments_and_no_input(tmp_path: Path) -> None:
    sky = program(tmp_path, 'cat; echo "$#: $2"')
    assert sky.give(["status", "two words"]) == "2: two words\n"


def an_order(name: str, lifetime_s: float | None = None) -> MemberOrder:
    return MemberOrder("5f2c9a1e", "000000.r0s1", offer(name), {"run": "5f2c9a1e"}, lifetime_s)


def task_for(name: str, options: dict[str, str], lifetime_s: float | None = None) -> dict[str, object]:
    return sky_task(an_order(name, lifetime_s), sky_machine(name), Account("skypilot", "machines.toml", options))


def test_a_task_names_one_machine_and_starts_the_member_there() -> None:
    task = task_for("aws.ec2.p3.8xlarge.spot", {"image": "docker:registry.example/zooid:1"}, lifetime_s=90.5)
    assert task["resources"] == {
        "infra": "aws/us-east-1",
        "instance_type": "p3.8xlarge",
        "accelerators": {"V100": 4},
        "use_spot": True,
        "image_id": "docker:registry.example/zooid:1",
    }
    assert task["name"] == "zooid-5f2c9a1e-000000-r0s1"
    assert task["envs"] == {START_VARIABLE: an_order("aws.ec2.p3.8xlarge.spot", 90.5).packed_program}
    assert str(task["run"]).startswith("exec timeout --signal=KILL 151 python3 -c ")
    assert "setup" not in task


def test_a_machine_without_accelerators_asks_for_none() -> None:
    task = task_for("aws.ec2.c5.4xlarge", {"setup": "pip install zooid", "python": "/opt/bin/python"})
    assert task["resources"] == {"infra": "aws/us-east-1", "instance_type": "c5.4xlarge", "use_spot": False}
    assert task["setup"] == "pip install zooid"
    assert str(task["run"]).startswith("exec /opt/bin/python -c ")


def test_a_machine_needs_python_from_somewhere() -> None:
    with pytest.raises(
        InputError, match=r"machines\.toml does not say where they come from; write a table \[skypilot\]"
    ):
        task_for("aws.ec2.c5.4xlarge", {})


@pytest.mark.parametrize("option", ["region", "endpoint"])
def test_options_that_mean_nothing_are_refused(option: str) -> None:
    def offer_of(name: str) -> Offer:
        return offer(name)

    with pytest.raises(InputError, match=rf"\[skypilot\] in machines\.toml has '{option}', which means nothing here: "):
        skypilot_platform(Account("skypilot", "machines.toml", {option: "x"}), offer_of, sky_machine)
