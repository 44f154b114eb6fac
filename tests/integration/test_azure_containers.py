"""Members in Azure's containers with no more rights than they need, through Azure's own clients."""

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lab.endpoints.azure_groups import ContainerInstances
from lab.endpoints.azure_jobs import ContainerApps
from lab.endpoints.azure_scenes import container_apps, container_instances
from lab.endpoints.azure_server import ArmRefusal, role_actions
from lab.members import Members
from lab.platform_scenes import Scene, running
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.coordinator.plans.own_offers import account_with
from zooid.core.errors import InputError
from zooid.core.runs.ticket import title_of
from zooid.platforms.azure_container.azure_account import place_of
from zooid.platforms.azure_container.container_groups import ContainerGroups
from zooid.platforms.azure_container.container_jobs import ContainerJobs

pytestmark = pytest.mark.timeout(180)

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
Service = ContainerInstances | ContainerApps
MADE: dict[str, Any] = {"groups": container_instances, "jobs": container_apps}
PROVIDERS: dict[str, Any] = {"groups": ContainerGroups, "jobs": ContainerJobs}
OWN = {"groups": "microsoft.containerinstance/", "jobs": "microsoft.app/"}


@pytest.fixture(scope="module", params=MADE)
def made(request: pytest.FixtureRequest) -> Iterator[tuple[str, Service, Scene]]:
    with or_skip(MADE[request.param]()) as (service, scene):
        yield request.param, service, scene


@pytest.fixture
def members(made: tuple[str, Service, Scene], tmp_path: Path) -> Iterator[Members]:
    scene = made[2]
    assert scene.url is not None
    run = secrets.token_hex(4)
    platform = scene.make()
    members = Members(platform, tmp_path, run, scene.url(run), scene.offers)
    yield members
    members.end()
    wait_until(lambda: not scene.leftovers(run))
    platform.release()


def start(scene: Scene, members: Members) -> str:
    launch = running(SLEEP, scene, members.launch(f"m{len(members.launched)}", ""))
    members.create([launch])
    return launch.member


def test_the_role_has_all_actions_that_are_needed_and_no_other(
    made: tuple[str, Service, Scene], members: Members
) -> None:
    kind, service, scene = made
    service.arm.used.clear()
    assert members.platform.has_room(1, scene.offers[0].name)
    member = start(scene, members)
    members.first_line(member)
    with closing(PROVIDERS[kind](place_of(account_with(scene.name), scene.offers[0]))) as provider:
        assert provider.end(members.run, [title_of(member, 0)]) == set()  # by force, while it runs
    identity = "microsoft.managedidentity/"
    needed = {action.lower() for action in role_actions() if action.lower().startswith((OWN[kind], identity))}
    assert service.arm.used == needed


def test_an_action_that_lacks_is_named_with_the_role(
    made: tuple[str, Service, Scene], members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, service, scene = made
    lacking = [action for action in role_actions() if not action.lower().endswith("/usages/read")]
    monkeypatch.setattr(service.arm, "actions", lacking)
    with pytest.raises(InputError, match=r"usages/read' over scope .* give the login the role in docs/azure-role.json"):
        start(scene, members)
    assert scene.left_behind is not None
    assert scene.left_behind(members.run) == []


def test_a_busy_service_is_asked_again(made: tuple[str, Service, Scene], members: Members) -> None:
    _, service, scene = made
    busy = ArmRefusal(429, "TooManyRequests", "Slow down.", {"Retry-After": "1"})
    before = service.arm.faults.num_given
    service.arm.faults.add("PUT", "", busy, times=2)
    assert members.first_line(start(scene, members)) == "here"
    assert service.arm.faults.num_given == before + 2
