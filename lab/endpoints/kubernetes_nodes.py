"""Nodes of a cluster behind an endpoint: which one a pod gets, and what its container is like there."""

import datetime
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.sandboxes.confines import Confines
from zooid.platforms.kubernetes.quotas import quantity

_DISK_BYTES = 4 * 2**30
_DEFAULT_SHARED_MEMORY_BYTES = 64 * 2**20
"""The size of /dev/shm that container runtimes make where no volume is mounted there."""
_IMAGE = re.compile(r"[a-z0-9.:_/@-]+")

Variables = Mapping[str, Mapping[str, str]]
"""Variables of every image, or of every Secret, by its name."""


@dataclass
class Node:
    """A machine of the cluster. Its size is a figure for the scheduler, not for this computer."""

    name: str
    cpus: float = 64.0
    memory_bytes: int = 64 * 2**30
    labels: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False

    def lacking(self, size: Mapping[str, float], taken: Mapping[str, float]) -> list[str]:
        """Return the resources of which the node has too little."""
        has = {"cpu": self.cpus, "memory": self.memory_bytes}
        return [name for name, need in size.items() if taken.get(name, 0.0) + need > has.get(name, 0.0)]


def size_in(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return what a pod requests."""
    requests = spec["containers"][0]["resources"]["requests"]
    return {name: quantity(amount) for name, amount in requests.items()}


def stamp(at_s: float) -> str:
    """Return a time as Kubernetes tells it: in whole seconds."""
    return datetime.datetime.fromtimestamp(int(at_s), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def placed(pod: dict[str, Any], nodes: Sequence[Node], pods: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the emptiest node that has room for a pod; without one, an empty name and why there is none."""
    wanted, size = pod["spec"].get("nodeSelector") or {}, size_in(pod["spec"])
    reasons: Counter[str] = Counter()
    fitting = []
    for node in nodes:
        if not wanted.items() <= node.labels.items():
            reasons["node(s) didn't match Pod's node affinity/selector"] += 1
        elif node.is_lost:
            reasons["node(s) had untolerated taint {node.kubernetes.io/unreachable: }"] += 1
        else:
            taken = _taken(node, pods)
            lacking = node.lacking(size, taken)
            reasons.update(f"Insufficient {resource}" for resource in lacking)
            if not lacking:
                fitting.append((taken["cpu"], node.name))
    if fitting:
        return min(fitting)[1], ""
    why = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    return "", f"0/{len(nodes)} nodes are available: {why}."


def _taken(node: Node, pods: Sequence[dict[str, Any]]) -> Counter[str]:
    taken: Counter[str] = Counter()
    for pod in pods:
        if pod["spec"].get("nodeName") == node.name and pod["status"]["phase"] in ("Pending", "Running"):
            taken.update(size_in(pod["spec"]))
    return taken


def obstacle(pod: dict[str, Any], images: Variables, secrets: Variables, num_tries: int) -> dict[str, str] | None:
    """Return why a container cannot be made, as the state `waiting` of its status tells it."""
    container = pod["spec"]["containers"][0]
    image = container["image"]
    if _IMAGE.fullmatch(image) is None:
        words = f'Failed to apply default image tag "{image}": invalid reference format'
        return {"reason": "InvalidImageName", "message": words}
    if image not in images:
        reason = "ImagePullBackOff" if num_tries else "ErrImagePull"
        return {"reason": reason, "message": f'Back-off pulling image "{image}": not found'}
    for source in container.get("envFrom") or []:
        name = source["secretRef"]["name"]
        if name not in secrets:
            return {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}
    return None


def confines_of(pod: dict[str, Any], images: Variables, secrets: Variables) -> Confines:
    """Return what a container is held to, and what it sees."""
    container, spec = pod["spec"]["containers"][0], pod["spec"]
    variables = {**images[container["image"]], "HOSTNAME": pod["metadata"]["name"]}
    for source in container.get("envFrom") or []:
        variables |= secrets[source["secretRef"]["name"]]
    variables |= {each["name"]: each["value"] for each in container.get("env") or []}
    limits = container["resources"]["limits"]
    memory_bytes = int(quantity(limits["memory"]))
    volumes = {each["name"]: (each.get("emptyDir") or {}).get("medium") for each in spec.get("volumes") or []}
    in_memory = [each["mountPath"] for each in container["volumeMounts"] if volumes[each["name"]] == "Memory"]
    return Confines(
        memory_bytes=memory_bytes,
        vcpus=quantity(limits["cpu"]),
        tmp_bytes=_DISK_BYTES,
        shared_memory_bytes=memory_bytes if "/dev/shm" in in_memory else _DEFAULT_SHARED_MEMORY_BYTES,
        is_read_only=False,
        accepts_connections=True,
        shows_cgroups=True,
        user_id=int((container.get("securityContext") or {}).get("runAsUser", 0)),
        environment=variables,
    )
