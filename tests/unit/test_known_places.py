"""Places in handles, which whoever may write to a run's folder can choose: zooid connects only to those of the user."""

from pathlib import Path

import pytest

from zooid.coordinator.plans.known_places import KnownPlaces, RayAddress, is_known, place_in
from zooid.coordinator.plans.own_offers import named_places
from zooid.core.runs.member_records import MemberHandle
from zooid.platforms.slurm import Cluster
from zooid.platforms.ssh import SshMachine

LISTED = """
[ssh.gpu1]
host = "me@10.0.0.7"
python = "/opt/venv/bin/python"
config = "/home/me/.ssh/other"

[slurm.short]
login = "login1"
config = "/home/me/.ssh/cluster"

[ray.cluster]
address = "ray://head:10001"
"""
GPU1 = {"host": "me@10.0.0.7", "python": "/opt/venv/bin/python", "config": "/home/me/.ssh/other"}
LOGIN1 = {"login": "login1", "config": "/home/me/.ssh/cluster", "cluster": "theirs"}
BARE = {"host": "gpu7", "python": "python3", "config": ""}


def handle(platform: str, place: dict[str, str]) -> MemberHandle:
    return MemberHandle(run="run", member="r0s0", platform=platform, offer="", launched_at_s=0.0, place=place)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownPlaces:
    file = tmp_path / "machines.toml"
    file.write_text(LISTED)
    monkeypatch.setenv("ZOOID_MACHINES", str(file))
    monkeypatch.setenv("RAY_ADDRESS", "ray://mine:10001")
    return KnownPlaces(named_places)


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("local", {"machine": "another"}),
        ("local", {}),
        ("ssh", GPU1),
        ("ssh", BARE),
        ("ssh", {**BARE, "host": "me@gpu7.example.org"}),
        ("slurm", LOGIN1),
        ("slurm", {"login": "", "config": "", "cluster": "ours"}),
        ("slurm", {"login": "login7", "config": "", "cluster": "ours"}),
        ("ray", {"address": "ray://head:10001"}),
        ("ray", {"address": "ray://mine:10001"}),
        ("ray", {"address": "auto"}),
    ],
)
def test_places_of_the_users_own_are_followed(places: KnownPlaces, platform: str, place: dict[str, str]) -> None:
    assert places.follow(handle(platform, place))


UNNAMED: list[tuple[str, dict[str, str]]] = [
    ("ssh", {**GPU1, "python": "/tmp/evil"}),
    ("ssh", {**GPU1, "config": "/tmp/evil"}),
    ("ssh", {**BARE, "python": "sh -c evil"}),
    ("ssh", {**BARE, "config": "/tmp/evil"}),
    ("ssh", {**BARE, "host": "-oProxyCommand=evil"}),
    ("ssh", {**BARE, "host": "me@-oProxyCommand"}),
    ("ssh", {**BARE, "host": "a b"}),
    ("ssh", {**BARE, "host": ""}),
    ("slurm", {**LOGIN1, "config": "/tmp/evil"}),
    ("slurm", {"login": "", "config": "/tmp/evil", "cluster": ""}),
    ("slurm", {"login": "-F/tmp/evil", "config": "", "cluster": ""}),
    ("ray", {"address": "ray://evil:10001"}),
    ("ray", {"address": ""}),
]
MALFORMED: list[tuple[str, dict[str, str]]] = [
    ("ssh", {}),
    ("ssh", {"host": "gpu7"}),
    ("ssh", {**BARE, "port": "22"}),
    ("slurm", {"login": "", "config": ""}),
    ("slurm", {"cluster": "ours"}),
    ("ray", {}),
    ("ray", {"address": "auto", "namespace": "zooid"}),
    ("unheard-of", {"address": "auto"}),
]


@pytest.mark.parametrize(("platform", "place"), [*UNNAMED, *MALFORMED])
def test_others_are_not_and_that_is_said_once(
    places: KnownPlaces, caplog: pytest.LogCaptureFixture, platform: str, place: dict[str, str]
) -> None:
    for _ in range(3):
        assert not places.follow(handle(platform, place))
    [record] = caplog.records
    assert record.getMessage().startswith(f"r0s0 on {platform} (")
    assert ("malformed" in record.getMessage()) == ((platform, place) in MALFORMED)


def test_places_of_one_platform_are_none_of_another() -> None:
    assert place_in(handle("ray", {"host": "gpu7"})) is None
    assert not is_known(RayAddress("gpu1"), [SshMachine("gpu1"), Cluster("gpu1")])
