"""SkyPilot's own parsers read what zooid sends to its command, and what the stand-in of the laboratory answers."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lab.endpoints.sky_answers import cluster_answer, job_answer, request_answer
from lab.endpoints.sky_scene import MACHINES
from lab.endpoints.sky_service import Cluster, Request
from lab.endpoints.sky_tasks_checked import CheckedTask
from lab.platform_scenes import MachinesLack
from lab.skypilot.environment import problems, skypilot_python
from zooid.catalog import offer, offers
from zooid.catalog.provider_accounts import Account
from zooid.catalog.sky_machines import sky_machine, sky_machines
from zooid.core.errors import CatalogError
from zooid.platforms.provider import MemberOrder
from zooid.platforms.skypilot import sky_arguments
from zooid.platforms.skypilot.sky_tasks import sky_task, task_text

pytestmark = pytest.mark.timeout(900)  # the first test may install SkyPilot

ACCOUNTS = ({"setup": "pip install zooid"}, {"image": "docker:registry.example/zooid:1", "python": "/opt/bin/python"})
ID = "0b8a1f4e-9c1d-4f5e-8a6b-2d3c4e5f6a7b"


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    try:
        skypilot_python()
    except MachinesLack as error:
        pytest.skip(str(error))


def machines() -> list[dict[str, Any]]:
    """All machines of the table, with the sizes of their offers."""
    sizes = ("num_gpus", "vcpus", "memory_bytes", "usd_per_hour")
    return [
        {**msgspec.to_builtins(machine), **{size: getattr(offer(name), size) for size in sizes}}
        for name, machine in sky_machines().items()
    ]


def task_of(name: str, options: dict[str, str], lifetime_s: float | None = None) -> dict[str, Any]:
    order = MemberOrder("5f2c9a1e", "000000.r0s1", offer(name), {"run": "5f2c9a1e"}, lifetime_s)
    return sky_task(order, sky_machine(name), Account("skypilot", "machines.toml", options))


def test_every_machine_of_the_catalog_has_a_task_that_skypilot_accepts() -> None:
    names = list(sky_machines())
    tasks = [
        task_text(task_of(name, options, lifetime_s))
        for name in names
        for options in ACCOUNTS
        for lifetime_s in (None, 90.5)
    ]
    assert len(tasks) == 4 * len(names) > 100
    found = problems(machines(), tasks)["tasks"]
    assert dict(zip(tasks, found, strict=True)) == dict.fromkeys(tasks, "")


def test_every_offer_of_skypilot_has_a_machine_or_is_refused() -> None:
    names = {each.name for each in offers() if each.platform == "skypilot"}
    without = {name for name in names if name not in sky_machines()}
    assert sky_machines().keys() <= names
    assert without == {"aws.sagemaker.p2.xlarge", "aws.sagemaker.p3.8xlarge"}, "which is no machine of its own"
    with pytest.raises(CatalogError, match=r"SkyPilot rents no machine for aws.sagemaker.p2.xlarge; it rents azure"):
        sky_machine("aws.sagemaker.p2.xlarge")


def with_resource(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda task: task["resources"].update({name: value})


SPOT, GOOGLES = "aws.ec2.p3.8xlarge.spot", "gcp.t4.us-west1"
WRONG: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    (SPOT, lambda task: task.update(comand="echo"), "unsupported field 'comand'"),
    (SPOT, lambda task: task.update(run=["echo"]), "is not of type 'string'"),
    (SPOT, lambda task: task["envs"].update({"1st": "no name"}), "1st"),
    (SPOT, with_resource("use_spots", True), "use_spots"),
    (SPOT, with_resource("use_spot", "yes"), "is not of type 'boolean'"),
    (SPOT, with_resource("infra", "aws/eu-central-9"), "eu-central-9"),
    (SPOT, with_resource("infra", "azur/eastus"), "azur"),
    (SPOT, with_resource("instance_type", "p3.3xlarge"), "p3.3xlarge"),
    (SPOT, with_resource("accelerators", {"A100": 4}), "A100"),
    (SPOT, with_resource("accelerators", {"V100": 2}), "p3.8xlarge has {'V100': 4}"),
    (GOOGLES, with_resource("accelerators", {"V100": 1}), "V100"),
    (GOOGLES, with_resource("instance_type", "n1-highmem-96"), "n1-highmem-96"),
]
"""An offer, what is changed in its task, and a part of what SkyPilot says to that."""


@pytest.fixture(scope="module")
def refusals() -> list[str]:
    tasks = []
    for name, change, _ in WRONG:
        task = task_of(name, ACCOUNTS[0])
        change(task)
        tasks.append(json.dumps(task))
    return problems(machines(), tasks)["tasks"]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_skypilot_refuses_a_task_with_something_wrong(refusals: list[str], number: int) -> None:
    """Without this, the parsers might accept whatever they are given."""
    assert WRONG[number][2] in refusals[number]


def test_every_command_line_is_one_of_skypilots() -> None:
    lines = [
        sky_arguments.rehearse("/tmp/task.yaml"),
        sky_arguments.launch("zooid-5f2c9a1e-000000-r0s1", "/tmp/task.yaml"),
        sky_arguments.known(["zooid-1"]),
        sky_arguments.living(["zooid-1", "zooid-2"]),
        sky_arguments.jobs(["zooid-1", "zooid-2"]),
        sky_arguments.requests([ID]),
        sky_arguments.requests_for("zooid-1"),
        sky_arguments.request_log(ID),
        sky_arguments.cancel([ID]),
        sky_arguments.job_log("zooid-1", 1),
        sky_arguments.down(["zooid-1", "zooid-2"], waits=True),
        sky_arguments.down(["zooid-1"], waits=False),
        sky_arguments.costs(),
    ]
    functions = {name for name, value in vars(sky_arguments).items() if callable(value) and name.islower()}
    assert len(functions) == 12, "each has a line above"
    wrong = [["launch", "--detach", "task.yaml"], ["down", "--output", "json", "zooid-1"], ["api", "state"]]
    found = problems([], command_lines=[*lines, *wrong])["command_lines"]
    assert found[: len(lines)] == [""] * len(lines)
    assert all(found[len(lines) :])


def test_the_answers_of_the_stand_in_are_those_of_skypilot() -> None:
    machine = MACHINES["aws/us-east-1", "c5.4xlarge"]
    task = CheckedTask("zooid-1", machine, {}, "true", "true")
    cluster = Cluster("zooid-1", task, Request(ID, "zooid-1"), 5, 1790000000.5, status="UP")
    records = "sky.schemas.api.responses"
    answers = [
        (f"{records}.StatusResponse", cluster_answer(cluster)),
        (f"{records}.ClusterJobRecord", job_answer(cluster)),
        ("sky.server.requests.payloads.RequestPayload", request_answer(cluster.request)),
    ]
    wrong = [(name, {**row, "status": None}) for name, row in answers]
    found = problems([], answers=[*answers, *wrong])["answers"]
    assert found[:3] == [""] * 3
    assert all(found[3:])
