"""A Ray cluster: how it is reached, what members get there, and how many of them fit."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.environment import ray_driver_environment
from zooid.core.errors import InputError
from zooid.core.units import format_bytes, parse_bytes
from zooid.platforms.line_link import LineLink, Unreachable


@dataclass(frozen=True)
class RayCluster:
    """A cluster, and what each member gets there."""

    address: str
    """What `ray.init` takes: `ray://host:10001` from outside, or `auto` on one of its nodes."""
    vcpus: float
    memory_bytes: int
    has_gpu: bool = False
    """Whether each member gets a GPU."""
    python: str = ""
    """Path of the interpreter on the nodes, which has torch and obstore; by default that of Ray itself."""
    resources: str = ""
    """Further resources of each member by their names in the cluster, such as `highmem=1, node:10.0.0.7=0.001`."""
    max_members: int | None = None
    """How many members there may be. A cluster whose nodes have room for fewer grows by itself."""

    def __post_init__(self) -> None:
        self._further_resources()

    @property
    def request(self) -> dict[str, Any]:
        """What an actor asks for, with the names of `ray.remote`."""
        sizes = {"num_cpus": self.vcpus, "memory": float(self.memory_bytes), "num_gpus": float(self.has_gpu)}
        return {**sizes, "resources": self._further_resources()}

    @property
    def resources_of_nodes(self) -> dict[str, float]:
        """What an actor asks for, with the names of the nodes' resources."""
        sizes = {"CPU": self.vcpus, "memory": float(self.memory_bytes), "GPU": float(self.has_gpu)}
        return {**sizes, **self._further_resources()}

    def _further_resources(self) -> dict[str, float]:
        parts = [part.strip().rpartition("=") for part in self.resources.split(",") if part.strip()]
        try:
            found = {name.strip(): float(amount) for name, _, amount in parts}
        except ValueError:
            found = {"": 0.0}
        if not all(name and amount > 0 for name, amount in found.items()):
            raise InputError(
                f"the resources {self.resources!r} of Ray cannot be read; give names and amounts above 0, such as "
                "highmem=1, node:10.0.0.7=0.001"
            )
        return found

    def num_fitting(self, available: Mapping[str, float]) -> int:
        """Return how many members fit into these resources of a node or a cluster."""
        return _num_fitting(available, self.vcpus, self.memory_bytes, int(self.has_gpu))


def open_driver(address: str) -> LineLink:
    """Start a driver for the cluster at an address, and return the link to it when it answers."""
    if importlib.util.find_spec("ray") is None:
        raise InputError("Ray is not installed here; install zooid[ray], with the version of Ray that the cluster has")
    command = [sys.executable, "-m", "zooid.platforms.ray.driver", address]
    link = LineLink(f"Ray at {address}", command, ray_driver_environment())
    try:
        link.ask("ping")
    except Unreachable:
        link.close()
        raise
    return link


def asked_sizes(address: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask Ray what the file of machines does not give: the size of a member, and how many there can be.

    A member gets a whole node, or the part of it that belongs to one GPU. Nodes may differ, so that each number is the
    smallest of all nodes. Nodes without processors, as heads often are, do not count.
    """
    try:
        link = open_driver(address)
    except Unreachable as error:
        raise InputError(f"{error}; give its `address` in the file of machines, such as ray://head:10001") from error
    try:
        nodes = [node for node in link.ask("nodes") if node.get("CPU")]
    finally:
        link.close()
    if not nodes:
        raise InputError(f"Ray at {address} has no node with a processor; give vcpus, memory and members of its nodes")
    return member_sizes(nodes, given)


def member_sizes(nodes: Sequence[Mapping[str, float]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of a member, and how many there can be, from the resources of nodes."""
    found: dict[str, Any] = {}
    num_gpus = min(int(node.get("GPU", 0)) for node in nodes)
    if not {"vcpus", "memory"} <= given.keys():
        num_parts = max(1, num_gpus)
        found["vcpus"] = float(max(1, int(min(node["CPU"] for node in nodes)) // num_parts))
        found["memory"] = int(min(node.get("memory", 0.0) for node in nodes)) // num_parts
        if num_gpus:
            found |= {"gpu": _gpu_name(nodes[0]), "num_gpus": 1}
    sizes = {**found, **given}
    memory = sizes["memory"]
    memory_bytes = memory if isinstance(memory, int) else parse_bytes(memory)
    num_wanted_gpus = min(1, int(sizes.get("num_gpus") or 0))
    found["members"] = sum(_num_fitting(node, sizes["vcpus"], memory_bytes, num_wanted_gpus) for node in nodes)
    if not found["members"] and "members" not in given:
        request = {"CPU": float(sizes["vcpus"]), "memory": float(memory_bytes), "GPU": float(num_wanted_gpus)}
        raise InputError(lack_of_room("the Ray cluster", nodes, request))
    return found


def lack_of_room(cluster: str, nodes: Sequence[Mapping[str, float]], request: Mapping[str, float]) -> str:
    """Return why no node can ever hold an actor with this request, and what to do; empty if a node can.

    `cluster` is what the message calls the cluster. The request has the names of the nodes' resources.
    """
    wanted = {name: amount for name, amount in request.items() if amount}
    if any(all(node.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in nodes):
        return ""
    largest = max(nodes, key=lambda node: (node.get("memory", 0.0), node.get("CPU", 0.0)), default={})
    offered = {name: largest.get(name, 0.0) for name in wanted}
    aside = " (Ray sets 30 % of a node's memory aside by default)" if offered["memory"] < wanted["memory"] else ""
    return (
        f"no node of {cluster} has room for a member with {_in_words(wanted)}; the largest node offers "
        f"{_in_words(offered)}{aside}: give less in the file of machines, or more `members` than fit now if the "
        "cluster starts other nodes by itself"
    )


def hopelessness(
    cluster: str, nodes: Sequence[Mapping[str, float]], request: Mapping[str, float], max_members: int | None
) -> str:
    """Return why an actor that waits can never be placed; empty if a node can hold it, or the cluster may start one."""
    num_fitting = sum(_num_fitting(node, request["CPU"], int(request["memory"]), int(request["GPU"])) for node in nodes)
    if num_fitting < (max_members or 0):
        return ""
    return lack_of_room(cluster, nodes, request)


def _in_words(resources: Mapping[str, float]) -> str:
    """Describe amounts of resources.

    >>> _in_words({"CPU": 4.0, "memory": 16e9, "GPU": 0.0})
    '4 CPU, 16 GB of memory and 0 GPU'
    """
    *others, last = [
        f"{format_bytes(amount)} of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
    ]
    return f"{', '.join(others)} and {last}" if others else last


def _num_fitting(available: Mapping[str, float], vcpus: float, memory_bytes: int, num_gpus: int) -> int:
    wanted = {"CPU": vcpus, "memory": memory_bytes, "GPU": num_gpus}
    return int(min(available.get(name, 0.0) // amount for name, amount in wanted.items() if amount))


def _gpu_name(node: Mapping[str, float]) -> str:
    """Return the model of a node's GPUs, which Ray notes as the name of a resource."""
    prefix = "accelerator_type:"
    return next((name.removeprefix(prefix) for name in node if name.startswith(prefix)), "gpu")
