"""What Azure's container groups and jobs say about their members, and which sizes they have."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from azure.mgmt.appcontainers import models as job_models
from azure.mgmt.containerinstance import models as group_models
from msgspec import structs

from lab.endpoints.json_server import JsonAnswer, JsonRequest, json_server
from zooid.catalog import offer
from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError, ZooidError
from zooid.core.runs.member_records import Exit
from zooid.platforms.azure_container.azure_account import AzurePlace, place_named, place_of
from zooid.platforms.azure_container.azure_platforms import group_platform, job_platform
from zooid.platforms.azure_container.container_groups import ContainerGroups
from zooid.platforms.azure_container.container_jobs import ContainerJobs
from zooid.platforms.azure_container.execution_ends import exit_of_executions
from zooid.platforms.azure_container.group_ends import exit_of_group
from zooid.platforms.azure_container.resource_manager import Quota, num_within, require_quota
from zooid.platforms.provider import MemberOrder

OPTIONS = {
    "subscription": "11111111-2222-3333-4444-555555555555",
    "resource_group": "lab",
    "image": "lab.azurecr.io/zooid:1",
    "environment": "lab",
}
PULLED, BEGUN, ENDED = (f"2026-03-01T10:0{minutes}Z" for minutes in ("0:00", "0:10", "1:40"))


def a_place(platform: str, name: str, **options: str) -> AzurePlace:
    return place_of(Account(platform, "machines.toml", {**OPTIONS, **options}), offer(name))


# Container groups


def a_group(state: dict[str, Any] | None = None, events: Any = (), provisioning: str = "Succeeded") -> Any:
    view = {"currentState": state, "events": list(events)}
    container = {
        "name": "member",
        "properties": {"image": "a", "resources": {"requests": {"cpu": 1, "memoryInGB": 2}}, "instanceView": view},
    }
    properties = {"containers": [container], "osType": "Linux", "provisioningState": provisioning}
    return group_models.ContainerGroup.deserialize({"properties": properties})


def ended_group(code: int, detail: str = "Completed") -> Any:
    state = {"state": "Terminated", "startTime": BEGUN, "finishTime": ENDED, "exitCode": code, "detailStatus": detail}
    return a_group(state, [{"name": "Pulling", "type": "Normal", "firstTimestamp": PULLED}])


def test_a_group_that_is_made_or_runs_has_no_end() -> None:
    assert exit_of_group(a_group(provisioning="Pending")) is None
    assert exit_of_group(a_group({"state": "Waiting"})) is None
    assert exit_of_group(a_group({"state": "Running", "startTime": BEGUN})) is None


def test_a_group_is_billed_from_the_pull_of_its_image() -> None:
    assert exit_of_group(ended_group(7)) == Exit(7, ran_s=90.0, billed_s=100.0)
    assert exit_of_group(ended_group(137, "Error")) == Exit(-signal.SIGKILL, ran_s=90.0, billed_s=100.0)


def test_a_group_without_memory_names_its_limit() -> None:
    found = exit_of_group(ended_group(137, "OOMKilled"))
    assert found is not None
    assert found.exceeded_bytes == 2_000_000_000


def test_a_group_that_cannot_start_says_why() -> None:
    events = [
        {"name": "Failed", "type": "Warning", "message": "the image is gone"},
        {"name": "BackOff", "type": "Warning"},
    ]
    found = exit_of_group(a_group({"state": "Waiting"}, events))
    assert str(found) == "could not be started: the image is gone"
    assert "Azure does not say why" in str(exit_of_group(a_group(provisioning="Failed")))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"containers": []},
        {"containers": [{"name": "member", "properties": {}}]},
        {"containers": [{"name": "member", "properties": {"instanceView": {"events": [{}]}}}]},
        {"containers": [{"properties": {"instanceView": {"currentState": {"state": "Terminated"}}}}]},
        {"containers": [{"properties": {"instanceView": {"currentState": {"state": "Dancing", "exitCode": 1}}}}]},
    ],
)
def test_strange_groups_are_no_error(properties: dict[str, Any]) -> None:
    found = exit_of_group(group_models.ContainerGroup.deserialize({"properties": properties}))
    assert found is None or found.billed_s is None


# Jobs of Container Apps


def an_execution(status: str, **properties: Any) -> job_models.JobExecution:
    template = {"containers": [{"resources": {"cpu": 1.0, "memory": "2Gi"}}]}
    times = {"startTime": BEGUN} if status == "Running" else {"startTime": BEGUN, "endTime": ENDED}
    return job_models.JobExecution(
        {"name": "a", "properties": {"status": status, "template": template, **times, **properties}}
    )


def with_code(code: int, information: str = "") -> dict[str, Any]:
    container = {"name": "member", "code": code, "status": "Terminated", "additionalInformation": information}
    return {"replicas": [{"name": "a-0", "containers": [container]}]}


def test_a_job_without_an_ended_execution_has_no_end() -> None:
    assert exit_of_executions([]) is None
    assert exit_of_executions([an_execution("Running"), an_execution("Succeeded")]) is None


def test_a_job_is_billed_for_all_its_executions() -> None:
    assert exit_of_executions([an_execution("Succeeded")]) == Exit(0, ran_s=90.0, billed_s=90.0)
    both = exit_of_executions([an_execution("Succeeded"), an_execution("Failed", detailedStatus=with_code(7))])
    assert both is not None
    assert both.billed_s == 180.0


def test_the_end_of_an_execution_is_told_by_its_container() -> None:
    assert exit_of_executions([an_execution("Failed", detailedStatus=with_code(137))]) == Exit(
        -signal.SIGKILL, ran_s=90.0, billed_s=90.0
    )
    memory = exit_of_executions([an_execution("Failed", detailedStatus=with_code(137, "OOMKilled"))])
    assert memory is not None
    assert memory.exceeded_bytes == 2 * 2**30
    stopped = exit_of_executions([an_execution("Stopped")])
    assert str(stopped) == "was stopped by a request to Azure"
    late = exit_of_executions([an_execution("Failed", reason="DeadlineExceeded", detailedStatus=with_code(137))])
    assert str(late) == "was ended by Azure, because its time was over"
    assert str(exit_of_executions([an_execution("Failed", message="no\x1b[2J node")])).startswith("failed: no")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"status": "Dancing"},
        {"status": "Failed", "detailedStatus": {"replicas": [{"containers": [{}]}, {}]}},
        {"status": "Failed", "message": "OOMKilled", "template": {"containers": [{"resources": {"memory": "manyGi"}}]}},
        {"status": "Failed", "message": "OOMKilled", "template": {"containers": [{}]}},
    ],
)
def test_strange_executions_are_no_error(properties: dict[str, Any]) -> None:
    found = exit_of_executions([job_models.JobExecution({"name": "a", "properties": properties})])
    assert found is not None
    assert found.exceeded_bytes is None


# Sizes, accounts and answers


@pytest.mark.parametrize("name", ["azure.aci.k80", "azure.aci.v100"])
def test_groups_with_gpus_are_gone_and_the_message_names_what_to_take(name: str) -> None:
    groups = ContainerGroups(a_place("azure_container", name, endpoint="http://127.0.0.1:1"))
    with pytest.raises(
        InputError, match=rf"on {name}: .* retired .* July 2025; take .* azure.jobs.t4 or azure.jobs.a100"
    ):
        groups.check([MemberOrder("a", "b", offer(name), {}, None)])
    assert "retired container groups with GPUs in July 2025" in offer(name).source


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("azure.jobs.t4", {"gpu": "V100"}, r"has 1 × V100; a job of Container Apps may have one of T4, A100"),
        ("azure.jobs.t4", {"num_gpus": 2}, r"has 2 × T4"),
        ("azure.jobs.cpu.4x8", {"vcpus": 8.0, "memory_bytes": 16 * 2**30}, r"may have up to 4 vCPUs"),
        ("azure.jobs.cpu.4x8", {"memory_bytes": 4 * 2**30}, r"with 2 GiB of memory for each vCPU"),
        ("azure.aci.cpu.4x8", {"memory_bytes": 300 * 10**9}, r"up to 31 vCPUs and 240 GB, in steps of 0.1 GB"),
        ("azure.aci.cpu.4x8", {"memory_bytes": 8_010_000_000}, r"in steps of 0.1 GB"),
    ],
)
def test_sizes_that_azure_does_not_have_are_refused(name: str, changes: dict[str, Any], words: str) -> None:
    platform = offer(name).platform
    provider: Any = ContainerJobs if platform == "azure_job" else ContainerGroups
    changed = structs.replace(offer(name), **changes)
    with pytest.raises(InputError, match=words):
        provider(a_place(platform, name, endpoint="http://127.0.0.1:1")).check(
            [MemberOrder("a", "b", changed, {}, None)]
        )


def test_an_account_says_what_it_lacks() -> None:
    with pytest.raises(
        InputError, match=r"members on azure_job need `subscription`, which machines.toml does not have"
    ):
        place_of(Account("azure_job", "machines.toml"), offer("azure.jobs.t4"))
    with pytest.raises(InputError, match=r"`identity` of \[azure_job\] .* is 'me'; give the resource ID"):
        _ = a_place("azure_job", "azure.jobs.t4", identity="me").identity
    with pytest.raises(InputError, match=r"in 'other/lab/eastus' of Azure"):
        place_named(Account("azure_job", "machines.toml", OPTIONS), "other/lab/eastus")


@pytest.mark.parametrize(
    ("make", "package", "name"),
    [
        (group_platform, "azure.mgmt.containerinstance", "azure.aci.cpu.4x8"),
        (job_platform, "azure.mgmt.appcontainers", "azure.jobs.cpu.4x8"),
    ],
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: Callable[..., Any], package: str, name: str
) -> None:
    for module in [module for module in sys.modules if module.startswith("zooid.platforms.azure_container.container_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    platform = make(Account(offer(name).platform, "machines.toml", OPTIONS), offer)
    assert not platform.has_room(1, name)
    assert "which are not installed" in caplog.text
    assert "pip install 'zooid[azure]'" in caplog.text


def test_quotas_are_compared_with_what_members_need() -> None:
    quotas = {"cores": Quota("cores of all", 10.0, 4.0), "groups": Quota("groups", 5.0, 7.0)}
    assert num_within(quotas, {"cores": 4.0, "unknown": 1.0}) == 1
    assert num_within(quotas, {"groups": 1.0}) == 0
    assert num_within(quotas, {"unknown": 1.0}) is None
    place = a_place("azure_container", "azure.aci.cpu.4x8")
    with pytest.raises(InputError, match=r"2 members need 8 more of the quota 'cores of all' .*, of which 4 of 10"):
        require_quota(place, quotas, {"cores": 8.0}, 2)


@pytest.fixture
def answered() -> Iterator[tuple[list[Any], str]]:
    """A body with which every request is answered, and the URL."""
    body: list[Any] = []

    def answer(request: JsonRequest) -> JsonAnswer:
        return JsonAnswer(body[0])

    with json_server(answer) as url:
        yield body, url


NO_RECORDS = [[], "text", 5, {"properties": 5}, {"properties": {"containers": 7}}, {"value": 3}, {"value": [5]}]


@pytest.mark.parametrize("body", NO_RECORDS)
def test_answers_that_make_no_sense_are_errors_of_zooid(answered: tuple[list[Any], str], body: Any) -> None:
    given, url = answered
    given.append(body)
    for provider in (
        ContainerGroups(a_place("azure_container", "azure.aci.cpu.4x8", endpoint=url)),
        ContainerJobs(a_place("azure_job", "azure.jobs.cpu.4x8", endpoint=url)),
    ):
        found: Any = None
        with suppress(ZooidError):
            found = provider.states("run", ["000000.r0s0"])
        assert found in (None, {"000000.r0s0": None}), "an answer without a state is that of a member that lives"
        provider.close()
