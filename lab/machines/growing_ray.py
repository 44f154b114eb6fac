"""A Ray cluster that starts nodes when members ask for them: Ray's own autoscaler, with nodes on one machine.

Ray's test provider stands for a cloud. It starts each node as further processes of the machine on which the head runs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from lab.machines.machine import Machine
from lab.machines.ray import RayMachines, start_head

_PROVIDER = """
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class Provider(FakeMultiNodeProvider):
    def create_node_with_resources_and_labels(self, config, tags, count, resources, labels):
        own = {name: amount for name, amount in resources.items() if name != "memory"}  # it refuses to set that
        return super().create_node_with_resources_and_labels(config, tags, count, own, labels)
"""
_FOLDER = "/var/lib/ray-growth"
_HEAD, _WORKER = "ray.head.default", "worker"


@contextmanager
def growing_ray_cluster(machine: Machine, max_nodes: int, memory_bytes: int) -> Iterator[RayMachines]:
    """Start a head without room for members, and up to `max_nodes` nodes, each for one member, when they are needed."""
    machine.write(f"{_FOLDER}/growing_provider.py", _PROVIDER, 0o600)
    machine.write(f"{_FOLDER}/cluster.json", json.dumps(_cluster(max_nodes, memory_bytes)), 0o600)
    environment = {"PYTHONPATH": _FOLDER, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    start_head(machine, [f"--autoscaling-config={_FOLDER}/cluster.json"], environment)
    yield RayMachines(machine, (machine,))


def _cluster(max_nodes: int, memory_bytes: int) -> dict[str, object]:
    """The autoscaler's configuration; it insists on fields that no node of this provider needs."""
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    worker = {"CPU": 1, "memory": memory_bytes, "object_store_memory": 80 * 2**20}
    return {
        "cluster_name": "growing",
        "max_workers": max_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": {
            "type": "external",
            "module": "growing_provider.Provider",
            "use_node_id_as_ip": True,  # all nodes have the same address
            "disable_node_updaters": True,  # they would prepare nodes over ssh
            "disable_launch_config_check": True,
        },
        "auth": {},
        "docker": {},
        "available_node_types": {
            _HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            _WORKER: {"resources": worker, "node_config": {}, "min_workers": 0, "max_workers": max_nodes},
        },
        "head_node_type": _HEAD,
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in commands},
    }
