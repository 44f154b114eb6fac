"""Jobs of members for Cloud Run: their messages and sizes, the account, and answers that are none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.cloud import run_v2
from msgspec import structs

from lab.endpoints.cloud_run_checks import job_problems
from lab.endpoints.cloud_run_scene import LOGIN, UNIVERSE, write_login
from lab.endpoints.json_server import JsonAnswer, JsonRequest, json_server
from zooid.catalog import offer
from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError, ZooidError
from zooid.platforms.cloud_run import cloud_run_jobs, google_requests
from zooid.platforms.cloud_run.cloud_run_jobs import CloudRunJobs
from zooid.platforms.cloud_run.google_requests import RunRefusal, RunRequests
from zooid.platforms.cloud_run.job_messages import job_message, timeout_s
from zooid.platforms.cloud_run.run_project import RunProject
from zooid.platforms.provider import START_VARIABLE, MemberOrder

MEMBER = "member@lab.iam.gserviceaccount.com"
OPTIONS = {"project": "lab", "image": "image:1", "service_account": MEMBER}
NAMES = ["gcp.run.cpu.1x1", "gcp.run.cpu.1x2", "gcp.run.cpu.2x4", "gcp.run.cpu.4x8", "gcp.run.cpu.8x16", "gcp.run.l4"]


def a_project(**options: str) -> RunProject:
    account = Account("cloud_run", "machines.toml", {**OPTIONS, **options})
    return RunProject.of(account, offer("gcp.run.cpu.4x8"))


def an_order(name: str, lifetime_s: float | None = None) -> MemberOrder:
    return MemberOrder("5f2c9a1e", "000000.r0s1", offer(name), {"run": "5f2c9a1e"}, lifetime_s)


@pytest.mark.parametrize("name", NAMES)
def test_the_job_of_every_offer_is_one_that_cloud_run_takes(name: str) -> None:
    order = an_order(name, 60.0)
    assert job_problems(order.resource, job_message(order, a_project(), run_v2), [MEMBER]) == []


def test_a_member_is_started_once_and_gets_its_size_time_and_account() -> None:
    job = job_message(an_order("gcp.run.l4", 90.5), a_project(python="/venv/bin/python"), run_v2)
    task = job.template.template
    assert (job.template.task_count, job.template.parallelism, task.max_retries) == (1, 1, 0)
    assert task.timeout.total_seconds() == 151
    assert task.service_account == MEMBER
    assert (task.node_selector.accelerator, task.gpu_zonal_redundancy_disabled) == ("nvidia-l4", True)
    [container] = task.containers
    assert dict(container.resources.limits) == {"cpu": "4", "memory": "16384Mi", "nvidia.com/gpu": "1"}
    assert [variable.name for variable in container.env] == [START_VARIABLE]
    assert container.command[0] == "/venv/bin/python"


def test_a_task_may_run_for_a_week_and_with_a_gpu_for_an_hour() -> None:
    assert timeout_s(offer("gcp.run.cpu.4x8"), None) == 168 * 3600
    assert timeout_s(offer("gcp.run.l4"), None) == 3600
    assert timeout_s(offer("gcp.run.l4"), 3600.0) == 3600


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gcp.run.cpu.1x2", {"vcpus": 3.0}, "has 3 vCPUs and 2048 MiB of memory; .* these vCPUs: 1 with 512 to 4096"),
        ("gcp.run.cpu.1x2", {"memory_bytes": 5 * 2**30}, "has 1 vCPUs and 5120 MiB of memory"),
        ("gcp.run.cpu.1x2", {"memory_bytes": 10**9}, "has 1000000000 bytes of memory; Cloud Run takes whole MiB"),
        ("gcp.run.l4", {"memory_bytes": 8 * 2**30}, "with a GPU needs at least 4 vCPUs and 16384 MiB"),
        ("gcp.run.l4", {"gpu": "H100"}, "has 1 H100; a member on Cloud Run gets one of L4"),
        ("gcp.run.l4", {"num_gpus": 2}, "has 2 L4; a member on Cloud Run gets one of L4"),
    ],
)
def test_sizes_that_cloud_run_does_not_have_are_refused(name: str, changes: dict[str, object], words: str) -> None:
    order = structs.replace(offer(name), **changes)
    with pytest.raises(InputError, match=words):
        job_message(MemberOrder("a", "b", order, {}, None), a_project(), run_v2)


def test_an_account_says_what_it_lacks() -> None:
    bare = Account("cloud_run", "machines.toml")
    with pytest.raises(InputError, match=r"need `project`, which machines.toml does not have; write a table"):
        RunProject.of(bare, offer("gcp.run.l4"))
    with pytest.raises(InputError, match=r"in 'other/us-central1' .* names the project lab; name its project there"):
        RunProject.named(Account("cloud_run", "machines.toml", OPTIONS), "other/us-central1")
    with pytest.raises(InputError, match=r"has the price of us-central1, but `region` .* is europe-west1; remove it"):
        a_project(region="europe-west1")


def test_a_login_is_sent_nowhere_in_plain_text() -> None:
    with pytest.raises(InputError, match=r"`endpoint` of .* give a URL that begins with https://"):
        RunRequests(a_project(endpoint="http://run.example:80"))


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.run_v2", None)
    with pytest.raises(InputError, match=r"pip install 'zooid\[gcp\]'"):
        RunRequests(a_project())


def test_a_missing_login_says_how_to_log_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(LOGIN, str(tmp_path / "nothing.json"))
    with pytest.raises(InputError, match="gcloud auth application-default login"):
        RunRequests(a_project())


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[list[JsonAnswer], RunRequests]]:
    """Answers that are given in this order, the last one again and again, and requests to whoever gives them."""
    login = tmp_path / "login.json"
    write_login(login)
    for name, value in {LOGIN: str(login), **UNIVERSE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(google_requests, "_TIMEOUT_S", 5.0)
    given: list[JsonAnswer] = []

    def answer(request: JsonRequest) -> JsonAnswer:
        return given.pop(0) if len(given) > 1 else given[0]

    with json_server(answer) as url:
        requests = RunRequests(a_project(endpoint=url))
        yield given, requests
        requests.close()


class _EndingJobs:
    """Requests about a job whose execution ends by itself, just before it would have been cancelled."""

    def __init__(self, project: RunProject) -> None:
        self.is_running = True
        self.deleted: list[str] = []

    def tasks(self, name: str) -> list[run_v2.Task]:
        ended = None if self.is_running else {"seconds": 2}
        return [run_v2.Task(execution="a", start_time={"seconds": 1}, completion_time=ended)]

    def cancel(self, name: str, execution: str) -> None:
        self.is_running = False
        raise RunRefusal("Cloud Run says: The execution has already completed.")

    def delete(self, name: str) -> None:
        self.deleted.append(name)


def test_a_member_that_ends_while_it_is_cancelled_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[_EndingJobs] = []

    def make(project: RunProject) -> _EndingJobs:
        made.append(_EndingJobs(project))
        return made[-1]

    monkeypatch.setattr(cloud_run_jobs, "RunRequests", make)
    provider = CloudRunJobs(a_project())
    assert provider.end("5f2c9a1e", ["000000.r0s1"]) == []
    assert made[0].deleted == ["zooid-5f2c9a1e-000000-r0s1"]


def refusal(code: int, message: str) -> JsonAnswer:
    return JsonAnswer({"error": {"code": code, "message": message, "status": "X"}}, code)


def test_transient_errors_are_tried_again(answers: tuple[list[JsonAnswer], RunRequests]) -> None:
    given, requests = answers
    given += [refusal(503, "later"), refusal(429, "slower"), JsonAnswer({"name": "projects/lab/jobs/a"})]
    job = requests.job("a")
    assert job is not None
    assert job.name == "projects/lab/jobs/a"


STRANGE = [[], "text", {}, {"name": "a", "latestCreatedExecution": 5}, {"name": "a", "conditions": {"b": []}}]


@pytest.mark.parametrize("body", STRANGE)
def test_answers_that_make_no_sense_are_errors_of_zooid(
    answers: tuple[list[JsonAnswer], RunRequests], body: object
) -> None:
    given, requests = answers
    given.append(JsonAnswer(body))
    with pytest.raises(ZooidError, match="Cloud Run gives no answer that can be used"):
        requests.job("a")


def test_refusals_are_told_in_words(answers: tuple[list[JsonAnswer], RunRequests]) -> None:
    given, requests = answers
    given.append(refusal(403, "Permission 'run.jobs.get' denied"))
    with pytest.raises(RunRefusal, match=r"'run.jobs.get' denied; docs/cloud-run-role.yaml has the role"):
        requests.job("a")
    given[0] = refusal(404, "nothing")
    assert requests.job("a") is None
    assert requests.tasks("a") == []
    given[0] = refusal(500, "it burns")
    with pytest.raises(ZooidError, match=r"no answer that can be used: .* it burns"):
        requests.job("a")
