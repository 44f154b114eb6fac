"""Sizes of members on a Ray cluster, from the resources of its nodes and from the user's file."""

import pytest

from zooid.core.errors import InputError
from zooid.platforms.ray.ray_cluster import RayCluster, hopelessness, lack_of_room, member_sizes

GIB = 2**30
SMALL = {"CPU": 8.0, "memory": 20.0 * GIB, "node:10.0.0.1": 1.0}
LARGE = {"CPU": 16.0, "memory": 40.0 * GIB, "GPU": 4.0, "accelerator_type:A100": 1.0}


def test_a_member_gets_a_whole_node_and_the_smallest_decides() -> None:
    assert member_sizes([SMALL, LARGE], {}) == {"vcpus": 8.0, "memory": 20 * GIB, "members": 3}


def test_a_member_gets_the_part_of_a_node_that_belongs_to_one_gpu() -> None:
    sizes = member_sizes([LARGE, LARGE], {})
    assert sizes == {"vcpus": 4.0, "memory": 10 * GIB, "gpu": "A100", "num_gpus": 1, "members": 8}


def test_the_file_of_machines_is_stronger() -> None:
    assert member_sizes([SMALL, LARGE], {"vcpus": 2.0, "memory": "10 GiB"}) == {"members": 6}
    assert member_sizes([SMALL, LARGE], {"vcpus": 2.0, "memory": "10 GiB", "num_gpus": 1})["members"] == 4


def test_an_actor_asks_for_all_that_a_member_needs() -> None:
    cluster = RayCluster("auto", 2.0, GIB, has_gpu=True, resources="highmem=1, node:10.0.0.7=0.001")
    assert cluster.request == {
        "num_cpus": 2.0,
        "memory": float(GIB),
        "num_gpus": 1.0,
        "resources": {"highmem": 1.0, "node:10.0.0.7": 0.001},
    }
    assert cluster.num_fitting(LARGE) == 4
    assert cluster.num_fitting(SMALL) == 0


@pytest.mark.parametrize("resources", ["highmem", "highmem=much", "=1", "highmem=0"])
def test_resources_that_cannot_be_read_are_refused(resources: str) -> None:
    with pytest.raises(InputError, match="cannot be read; give names and amounts above 0, such as"):
        RayCluster("auto", 1.0, GIB, resources=resources)


def test_a_member_that_is_larger_than_every_node_is_refused_with_the_largest() -> None:
    with pytest.raises(InputError) as error:
        member_sizes([SMALL, {"CPU": 16.0, "memory": 11.2e9}], {"vcpus": 4.0, "memory": "48 GB"})
    assert str(error.value) == (
        "no node of the Ray cluster has room for a member with 4 CPU and 48 GB of memory; the largest node offers "
        "8 CPU and 21.47 GB of memory (Ray sets 30 % of a node's memory aside by default): give less in the file of "
        "machines, or more `members` than fit now if the cluster starts other nodes by itself"
    )


def test_a_cluster_may_start_larger_nodes_for_the_members_that_its_user_gives() -> None:
    given = {"vcpus": 4.0, "memory": "48 GB", "members": 2}
    assert member_sizes([SMALL], given)["members"] == 0, "the file of machines is stronger"


class TestWaiting:
    def judged(self, cluster: RayCluster) -> str:
        return hopelessness("Ray at auto", [SMALL, LARGE], cluster.resources_of_nodes, cluster.max_members)

    def test_a_node_that_is_busy_may_be_free_later(self) -> None:
        assert self.judged(RayCluster("auto", 16.0, 40 * GIB, has_gpu=True, max_members=1)) == ""

    def test_no_node_can_ever_hold_it(self) -> None:
        why = self.judged(RayCluster("auto", 1.0, GIB, resources="highmem=1", max_members=8))
        assert why.startswith(
            "no node of Ray at auto has room for a member with 1 CPU, 1.074 GB of memory and 1 highmem;"
        )
        assert "the largest node offers 16 CPU, 42.95 GB of memory and 0 highmem: give less" in why
        assert self.judged(RayCluster("auto", 32.0, GIB)) != ""

    def test_a_cluster_that_grows_may_start_a_node_that_holds_it(self) -> None:
        assert self.judged(RayCluster("auto", 32.0, GIB, max_members=1)) == ""

    def test_a_cluster_without_nodes_offers_nothing(self) -> None:
        assert "the largest node offers 0 CPU" in lack_of_room(
            "Ray at auto", [], {"CPU": 1.0, "memory": 1e9, "GPU": 0.0}
        )
