"""Members on Cloud Run that cannot start or end as they should, through Google's own client."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import google.auth
import pytest
from google.auth.transport.requests import AuthorizedSession

from lab.endpoints.cloud_run import PARENT, CloudRunApi, role_permissions
from lab.endpoints.cloud_run_scene import LOGIN, ROLE, cloud_run_service, write_login
from lab.members import Members
from lab.platform_scenes import Scene, running
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.coordinator.plans.own_offers import account_with
from zooid.core.environment import machines_file
from zooid.core.errors import InputError
from zooid.core.runs.ticket import title_of
from zooid.platforms.cloud_run.cloud_run_jobs import CloudRunJobs
from zooid.platforms.cloud_run.google_requests import RunRequests
from zooid.platforms.cloud_run.job_messages import job_message
from zooid.platforms.cloud_run.run_project import RunProject
from zooid.platforms.provider import MemberOrder, resource_name

pytestmark = pytest.mark.timeout(180)

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
FILLING = """
held = open("/tmp/file", "wb")
while True:
    held.write(bytes(2**20))
"""


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[CloudRunApi, Scene]]:
    with or_skip(cloud_run_service()) as pair:
        yield pair


@pytest.fixture
def api(made: tuple[CloudRunApi, Scene]) -> CloudRunApi:
    return made[0]


@pytest.fixture
def scene(made: tuple[CloudRunApi, Scene]) -> Scene:
    return made[1]


@pytest.fixture
def members(scene: Scene, tmp_path: Path) -> Iterator[Members]:
    assert scene.url is not None
    run = secrets.token_hex(4)
    platform = scene.make()
    members = Members(platform, tmp_path, run, scene.url(run), scene.offers)
    yield members
    members.end()
    wait_until(lambda: not scene.leftovers(run))
    platform.release()


def start(scene: Scene, members: Members, program: str = SLEEP, offer: str = "") -> str:
    launch = running(program, scene, members.launch(f"m{len(members.launched)}", ""))
    members.create([replace(launch, offer=offer or launch.offer)])
    return launch.member


def name_of(members: Members, member: str) -> str:
    return resource_name(members.run, title_of(member, 0))


@pytest.fixture
def project() -> RunProject:
    return RunProject.of(account_with("cloud_run"), rented_offer("gcp.run.cpu.4x8"))


def test_the_role_has_all_permissions_that_are_needed_and_no_other(
    api: CloudRunApi, scene: Scene, members: Members, project: RunProject
) -> None:
    api.used.clear()
    provider = CloudRunJobs(project)
    member = start(scene, members)
    members.first_line(member)
    title = title_of(member, 0)
    provider.states(members.run, [title, "nobody"])
    assert provider.end(members.run, [title]) == []  # by force
    ended = provider.states(members.run, [title])[title]
    assert ended is not None
    assert "cancelled" in ended.reason
    provider.close()
    assert api.used == set(role_permissions(ROLE))


@pytest.mark.parametrize("permission", ["run.jobs.create", "run.jobs.run"])
def test_a_permission_that_lacks_is_named(
    api: CloudRunApi, scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch, permission: str
) -> None:
    monkeypatch.setattr(api, "permissions", set(role_permissions(ROLE)) - {permission})
    words = f"'{permission}' denied"
    if permission == "run.jobs.create":
        with pytest.raises(InputError, match=words):
            start(scene, members)
        assert api.left_of(members.run) == []
    else:
        reason = str(members.end_of(start(scene, members)))
        assert words in reason
        assert "docs/cloud-run-role.yaml has the role" in reason


def test_a_gpu_without_quota_is_refused_before_anything_starts(
    api: CloudRunApi, scene: Scene, members: Members
) -> None:
    with pytest.raises(InputError, match=r"cannot be started on gcp.run.l4: .* quota for using GPUs"):
        start(scene, members, offer="gcp.run.l4")
    assert api.left_of(members.run) == []


def test_an_image_that_does_not_exist_is_refused_before_anything_starts(
    api: CloudRunApi, scene: Scene, members: Members
) -> None:
    file = Path(machines_file())
    before = file.read_text()
    try:
        file.write_text(before.replace("zooid:1", "zooid:2"))
        members.platform = scene.make()
        with pytest.raises(InputError, match="Image not found"):
            start(scene, members)
    finally:
        file.write_text(before)
    assert api.left_of(members.run) == []


def test_files_count_as_memory(scene: Scene, members: Members) -> None:
    ended = members.end_of(start(scene, members, FILLING, "gcp.run.cpu.1x1"))
    assert ended.exceeded_bytes == 2**30


def test_a_job_that_was_made_and_never_run_is_run_by_the_next_start(
    scene: Scene, members: Members, project: RunProject
) -> None:
    launch = running(SLEEP, scene, members.launch("m0", ""))
    requests = RunRequests(project)
    order = MemberOrder(members.run, launch.ticket.title, rented_offer(launch.offer), {}, None)
    assert requests.create(order.resource, job_message(order, project, requests.types)) is not None
    # its program is an empty order, which fails; what counts is that it runs, and once
    members.create([launch])
    wait_until(lambda: len(requests.tasks(order.resource)) == 1)
    members.platform.create([launch])
    assert len(requests.tasks(order.resource)) == 1
    requests.close()


def test_a_job_that_was_run_twice_lives_until_both_have_ended_and_is_billed_for_both(
    scene: Scene, members: Members, project: RunProject
) -> None:
    member = start(scene, members)
    members.first_line(member)
    requests = RunRequests(project)
    name = resource_name(members.run, title_of(member, 0))
    requests.run(name)
    wait_until(lambda: sorted(task.completion_time is None for task in requests.tasks(name)) == [False, True])
    assert members.is_running(member)
    assert members.log(member) == "here\n"
    members.delete(member)
    assert scene.billed_usd is not None
    least_usd = 60 * (4 * 0.000018 + 8 * 0.000002)
    assert scene.billed_usd(members.run) == pytest.approx(2 * least_usd)
    requests.close()


def test_a_service_that_stumbles_is_asked_again(api: CloudRunApi, scene: Scene, members: Members) -> None:
    api.outages += [503, 503, 429]
    member = start(scene, members)
    assert members.first_line(member) == "here"
    assert api.outages == []


def test_the_endpoint_refuses_what_the_service_does_not_know(
    scene: Scene, project: RunProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{project.endpoint}/v2/{PARENT}/jobs?jobId=a"
    session = logged_in()
    answer = session.post(url, json={"template": {"taskCounts": 1}})
    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert "taskCounts" in answer.json()["error"]["message"]
    assert session.post(f"{url}&dryRun=true", json={}).status_code == 400
    write_login(tmp_path / "stranger.json")
    monkeypatch.setenv(LOGIN, str(tmp_path / "stranger.json"))
    assert logged_in().post(url, json={"template": {}}).status_code == 401


def logged_in() -> Any:
    """Return a session that sends the token of the user's login with each request."""
    login, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return AuthorizedSession(login)  # type: ignore[no-untyped-call]
