"""The Job of a member: one pod, started once, which gets exactly the size of its offer."""

import math
from typing import Any

from zooid.core.resources.offer import Offer
from zooid.platforms.kubernetes.cluster_clients import RUN_LABEL, TITLE_LABEL
from zooid.platforms.kubernetes.namespaces import Namespace
from zooid.platforms.provider import MemberOrder, start_command

CONTAINER = "member"
_GRACE_S = 120
"""Seconds from SIGTERM, the notice that a pod must leave its node, to SIGKILL. Spot nodes give less."""
_LIFETIME_MARGIN_S = 60
"""Seconds that the cluster adds to a member's lifetime, within which the member ends by itself and records that."""
_KEPT_S = 24 * 3600
"""Seconds after which the cluster removes the Job of a member that has ended, if nobody else has."""
_LOST_NODE_S = 30
"""Seconds for which a node may be silent before its pods are given up; by default they are 300."""
_SILENT_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def job_manifest(order: MemberOrder, named: Namespace) -> dict[str, Any]:
    """Return the Job of a member, as YAML files have it."""
    labels = {
        "app.kubernetes.io/managed-by": "zooid",
        RUN_LABEL: order.run,
        TITLE_LABEL: order.title,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": order.resource, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(order, named)},
        },
    }


def size_of(offer: Offer) -> dict[str, str]:
    """Return the resources of a member, which it is promised and held to."""
    size = {"cpu": f"{math.ceil(offer.vcpus * 1000)}m", "memory": str(offer.memory_bytes)}
    return size | ({"nvidia.com/gpu": str(offer.num_gpus)} if offer.num_gpus else {})


def _pod_spec(order: MemberOrder, named: Namespace) -> dict[str, Any]:
    silent = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_S}
        for key in _SILENT_NODE_TAINTS
    ]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,  # members ask nothing of the cluster
        "enableServiceLinks": False,
        "containers": [_container(order, named)],
        "tolerations": [*silent, *named.tolerated_taints],
        # data workers hand tensors over in /dev/shm, which has 64 MB by default
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    if order.lifetime_s is not None:
        spec["activeDeadlineSeconds"] = math.ceil(order.lifetime_s) + _LIFETIME_MARGIN_S
    if named.service_account:
        spec["serviceAccountName"] = named.service_account
    if named.selected_labels:
        spec["nodeSelector"] = named.selected_labels
    return spec


def _container(order: MemberOrder, named: Namespace) -> dict[str, Any]:
    size = size_of(order.offer)
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if named.user_number is not None:
        security |= {"runAsUser": named.user_number, "runAsNonRoot": named.user_number != 0}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": named.needed_image(),
        "command": start_command(named.python),
        "env": [{"name": name, "value": value} for name, value in order.environment.items()],
        "resources": {"requests": size, "limits": size},
        "securityContext": security,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    if named.secret:
        container["envFrom"] = [{"secretRef": {"name": named.secret}}]
    return container
