"""A Ray cluster without a free node grows for members, by Ray's own autoscaler."""

import secrets
from pathlib import Path

import pytest

from lab.machines.growing_ray import growing_ray_cluster
from lab.machines.ray import missing_ray
from lab.members import Members
from lab.platform_scenes import MIB, Scene, laboratory, running, server_url
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.catalog.machines_file import OwnPlace, offer_of_place
from zooid.platforms.ray import RayCluster, RayPlatform

pytestmark = pytest.mark.timeout(240)

MAX_NODES = 2
GROWTH_S = 120.0


def test_nodes_are_started_for_members(tmp_path: Path) -> None:
    if missing_ray() is not None:
        pytest.skip(f"machines need {missing_ray()}")
    with (
        or_skip(laboratory(1, ())) as ([machine], server),
        growing_ray_cluster(machine, MAX_NODES, 1024 * MIB) as ray,
    ):
        cluster = RayCluster(ray.address, vcpus=1.0, memory_bytes=512 * MIB, max_members=MAX_NODES)
        offer = offer_of_place(OwnPlace("ray.growing", {}, {"vcpus": 1.0, "memory": 512 * MIB, "site": "laboratory"}))
        platform = RayPlatform(lambda name: cluster)
        scene = Scene("ray", lambda: platform, [offer], machine.python, (machine,))
        run = secrets.token_hex(4)
        members = Members(platform, tmp_path, run, server_url(server)(run), [offer])
        try:
            assert platform.has_room(MAX_NODES, offer.name)
            assert not platform.has_room(MAX_NODES + 1, offer.name)
            launches = [
                running("print('here')", scene, members.launch(f"m{number}", "")) for number in range(MAX_NODES)
            ]
            members.create(launches)
            assert all(members.is_running(launch.member) for launch in launches), "they wait for nodes"
            wait_until(lambda: all(members.log(launch.member) for launch in launches), timeout_s=GROWTH_S)
            assert [members.status_of(launch.member) for launch in launches] == [0] * MAX_NODES
        finally:
            members.end()
            platform.release()
