"""Sizes of members on a Ray cluster, from the resources of its nodes and from the user's file."""

import pytest

from zooid.core.errors import InputError
from zooid.platforms.ray.ray_cluster import RayCluster, member_sizes

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
