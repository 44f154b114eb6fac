"""Members in a cluster that cannot start or end as they should, through Kubernetes' own client."""

import logging
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lab.endpoints.kubernetes import KubernetesApi, role_rules
from lab.endpoints.kubernetes_scene import ROLE, kubernetes_cluster
from lab.members import Members
from lab.platform_scenes import Scene, running
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.coordinator.plans.own_offers import kubernetes_namespaces, own_offer
from zooid.core.environment import machines_file
from zooid.core.errors import InputError
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.ticket import title_of
from zooid.platforms.kubernetes import kubernetes_platform

pytestmark = pytest.mark.timeout(180)

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
GROWING = "held = []\nwhile True: held.append(bytearray(2**20))"
HASTY = 0.02
"""Patience with which a member is given up after seconds, which a real cluster would get minutes for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[KubernetesApi, Scene]]:
    with or_skip(kubernetes_cluster(kills_groups=True)) as made:
        yield made


@pytest.fixture
def api(cluster: tuple[KubernetesApi, Scene]) -> KubernetesApi:
    return cluster[0]


@pytest.fixture
def scene(cluster: tuple[KubernetesApi, Scene]) -> Scene:
    return cluster[1]


@pytest.fixture
def members(scene: Scene, tmp_path: Path) -> Iterator[Members]:
    assert scene.url is not None
    run = secrets.token_hex(4)
    platform = kubernetes_platform(kubernetes_namespaces, own_offer, HASTY)
    made = Members(platform, tmp_path, run, scene.url(run), scene.offers)
    yield made
    made.end()
    wait_until(lambda: not scene.leftovers(run))
    platform.release()


@pytest.fixture
def machines() -> Iterator[Path]:
    """The file of machines, which is as before afterwards."""
    file = Path(machines_file())
    before = file.read_text()
    yield file
    file.write_text(before)


def start(scene: Scene, members: Members, program: str = SLEEP, offer: str = "") -> str:
    launch = running(program, scene, members.launch(f"m{len(members.launched)}", ""))
    members.create([replace(launch, offer=offer or launch.offer)])
    return launch.member


def write_table(machines: Path, name: str, **options: str | int) -> str:
    """Add a table like that of the laboratory, with other options; returns the name of its offer."""
    lines = machines.read_text().partition("[kubernetes.lab]")[2].partition("[")[0].splitlines()
    kept = [line for line in lines if line.partition(" ")[0] not in options]
    own = [f"{option} = {value!r}".replace("'", '"') for option, value in options.items()]
    machines.write_text("\n".join([machines.read_text(), f"[kubernetes.{name}]", *kept, *own, ""]))
    return f"kubernetes.{name}"


def test_a_member_that_no_node_can_take_is_given_up_with_the_schedulers_words(
    scene: Scene, members: Members, machines: Path
) -> None:
    offer = write_table(machines, "huge", vcpus=500)
    member = start(scene, members, offer=offer)
    assert str(members.end_of(member)).startswith("could not be started: no node has room for it: 0/2 nodes are avail")
    wait_until(lambda: not scene.leftovers(members.run))


def test_what_a_member_waits_for_is_told_before_it_is_given_up(
    scene: Scene, members: Members, machines: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        members.end_of(start(scene, members, offer=write_table(machines, "elsewhere", node_selector="name=node9")))
    assert "000000.m0 waits: no node has room for it" in caplog.text
    assert "didn't match Pod's node affinity/selector" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "registry.example/gone:1"}, "its image registry.example/gone:1 cannot be pulled (ImagePullBackOff)"),
        ({"image": "Not An Image"}, "its image Not An Image cannot be pulled (InvalidImageName)"),
        ({"secret": "forgotten"}, 'its container cannot be made (CreateContainerConfigError): secret "forgotten"'),
    ],
)
def test_a_pod_that_cannot_be_made_says_what_to_mend(
    scene: Scene, members: Members, machines: Path, options: dict[str, str], words: str
) -> None:
    member = start(scene, members, offer=write_table(machines, "broken", **options))
    assert str(members.end_of(member)).startswith(f"could not be started: {words}")


def test_members_beyond_a_quota_are_refused_before_any_is_started(
    api: KubernetesApi, scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api.cluster.quotas, "compute", {"requests.cpu": "1"})
    launches = [running(SLEEP, scene, members.launch(f"m{number}", "")) for number in range(2)]
    launches = [replace(launch, offer="kubernetes.lab") for launch in launches]
    with pytest.raises(InputError, match=r"2 members on kubernetes.lab are beyond a quota of the namespace"):
        members.platform.create(launches)
    assert api.cluster.alive(members.run) == []
    assert members.platform.has_room(1, "kubernetes.lab")
    assert not members.platform.has_room(2, "kubernetes.lab")


def test_a_quota_that_others_have_used_up_is_named(
    api: KubernetesApi, scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(scene, members)
    members.first_line(first)
    monkeypatch.setitem(api.cluster.quotas, "compute", {"pods": "1"})
    assert not members.platform.has_room(1, "kubernetes.lab")
    ended = members.end_of(start(scene, members))
    assert "the cluster refuses its pod: Error creating: pods" in str(ended)
    assert "exceeded quota: compute" in str(ended)
    assert members.is_running(first)


def test_a_container_that_ends_as_a_whole_for_lack_of_memory_still_names_its_limit(
    api: KubernetesApi, scene: Scene, members: Members
) -> None:
    assert scene.tight is not None
    before = api.cluster.num_out_of_memory
    ended = members.end_of(start(scene, members, GROWING, "kubernetes.tight"))
    assert ended.exceeded_bytes == scene.tight.memory_bytes
    assert api.cluster.num_out_of_memory == before + 1, "the cluster has ended all of it"


def test_the_cluster_ends_a_member_that_hangs_when_its_time_is_over(
    api: KubernetesApi, scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zooid.platforms.kubernetes.job_manifests._LIFETIME_MARGIN_S", 3)
    monkeypatch.setattr("zooid.platforms.kubernetes.job_manifests._GRACE_S", 1)
    members.create([running(SLEEP, scene, members.launch("m0", "", lifetime_s=7.0))])
    members.first_line("m0")
    api.cluster.freeze(members.run, title_of("m0", 0))
    ended = members.end_of("m0")
    assert str(ended) == "was ended, because its 7 s were over"
    assert ended.billed_s is not None
    assert ended.billed_s >= 9, "the cluster has ended it after its own deadline of 10 s, and tells whole seconds"
    assert members.store.list(keys.ENDS) == []


def test_a_member_that_hangs_when_it_is_preempted_is_lost(
    api: KubernetesApi, scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zooid.platforms.kubernetes.job_manifests._GRACE_S", 1)
    member = start(scene, members)
    members.first_line(member)
    title = title_of(member, 0)
    api.cluster.freeze(members.run, title)
    api.cluster.evict(api.cluster.pod_of(members.run, title), "PreemptionByScheduler")
    assert "is lost: its pod was evicted or deleted" in str(members.end_of(member))


def test_a_role_that_lacks_a_right_is_refused_with_the_page_that_has_it(
    api: KubernetesApi, scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesser = [rule for rule in api.rules if "jobs" not in rule["resources"]]
    monkeypatch.setattr(api, "rules", lesser)
    with pytest.raises(Exception, match=r'cannot create resource "jobs" .*; docs/kubernetes-role.yaml has the role'):
        members.platform.create([running(SLEEP, scene, members.launch("m0", ""))])


def test_an_expired_login_says_so(api: KubernetesApi, members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "token", "another")
    with pytest.raises(Exception, match="Unauthorized; log in again, as for kubectl"):
        members.platform.create([members.launch("m0", "")])


def test_a_kubeconfig_that_does_not_exist_is_named(members: Members, machines: Path) -> None:
    offer = write_table(machines, "nowhere", config="/does/not/exist.yaml")
    with pytest.raises(InputError, match=r"/does/not/exist.yaml .*give `config` and `context` in \[kubernetes.nowhere"):
        members.platform.place(replace(members.launch("m0", ""), offer=offer))


def test_a_handle_of_a_cluster_that_the_user_has_not_listed_is_not_followed(
    scene: Scene, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    member = start(scene, members)
    members.first_line(member)
    handle = decode_record(bytes(members.store.get(keys.handle(member, 0))), MemberHandle, member)
    evil = structs.replace(handle, place={**handle.place, "where": "training at https://evil.example"})
    other = scene.make()
    assert not other.watch(evil, title_of(member, 0))
    assert "has no table [kubernetes.NAME] of the namespace training at https://evil.example" in caplog.text
    assert other.watch(handle, title_of(member, 0))
    other.release()


def test_the_role_in_the_documents_is_the_least(api: KubernetesApi) -> None:
    """The last test: all before have had this role, and each of its rights was needed."""
    granted = {
        (verb, resource) for rule in role_rules(ROLE) for verb in rule["verbs"] for resource in rule["resources"]
    }
    assert api.used == granted
