"""Members as Jobs of a cluster, through the official client of Kubernetes and an API server on this machine."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lab.endpoints.kubernetes import KubernetesApi, kubernetes_endpoint, role_rules, write_kubeconfig
from lab.endpoints.kubernetes_cluster import ClusterSettings, KubernetesCluster
from lab.endpoints.kubernetes_nodes import Node
from lab.platform_scenes import MachinesLack, Scene, server_url, variables
from lab.sandboxes.sandbox import PYTHON, missing_for_sandboxes, sandbox_host
from lab.servers import moto_s3
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.plans.own_offers import kubernetes_namespaces, own_offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.platforms import Platform
from zooid.platforms.kubernetes import kubernetes_platform

ROLE = Path(__file__).parents[2] / "docs" / "kubernetes-role.yaml"
NAMESPACE, IMAGE, SECRET = "training", "registry.example/zooid:1", "store"
USD_PER_HOUR = 0.36
"""What the laboratory's cluster charges for a member of any size: 0.01 cents for a second."""
_TABLE = """
[kubernetes.{name}]
config = "{config}"
context = "lab"
image = "{image}"
python = "{python}"
secret = "{secret}"
node_selector = "name={node}"
vcpus = 1
memory = "{memory}"
site = "laboratory"
usd_per_hour = {usd_per_hour}
"""
_PLACES = {"lab": ("node1", "1 GiB"), "other": ("node2", "1 GiB"), "tight": ("node1", "128 MiB")}
"""Tables of the file of machines: the node on which members run, and the memory of each."""


@contextmanager
def kubernetes_cluster(**settings: Any) -> Iterator[tuple[KubernetesApi, Scene]]:
    """Yield an API server with two nodes, and the scene; `settings` are those of the cluster."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise MachinesLack(f"containers of a cluster need {lacking}")
    with ExitStack() as stack:
        host = stack.enter_context(sandbox_host())
        server = stack.enter_context(moto_s3(host.caller_address))
        stack.enter_context(variables(server.environment))
        credentials = {name: server.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        made = ClusterSettings(images={IMAGE: {}}, secrets={SECRET: credentials}, **settings)
        nodes = [Node(name, labels={"name": name}) for name in ("node1", "node2")]
        api = KubernetesApi(KubernetesCluster(host, nodes, made), NAMESPACE, "a-token", role_rules(ROLE))
        url = stack.enter_context(kubernetes_endpoint(api))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-kubernetes-scene-")))
        config, machines = folder / "config.yaml", folder / "machines.toml"
        write_kubeconfig(config, url, api)
        common = {"config": config, "image": IMAGE, "python": PYTHON, "secret": SECRET, "usd_per_hour": USD_PER_HOUR}
        machines.write_text(
            "".join(
                _TABLE.format(name=name, node=node, memory=memory, **common) for name, (node, memory) in _PLACES.items()
            )
        )
        stack.enter_context(variables({"ZOOID_MACHINES": str(machines)}))

        def make() -> Platform:
            platform = kubernetes_platform(kubernetes_namespaces, own_offer)
            stack.callback(platform.release)
            return platform

        cluster = api.cluster
        yield (
            api,
            Scene(
                "kubernetes",
                make,
                [resolve_offer("kubernetes.lab"), resolve_offer("kubernetes.other")],
                PYTHON,
                url=server_url(server),
                tight=resolve_offer("kubernetes.tight"),
                notify=lambda run, title: cluster.evict(cluster.pod_of(run, title)),
                lose=lambda run, title: cluster.lose_node(cluster.pod_of(run, title)["spec"]["nodeName"]),
                left_behind=cluster.alive,
                billed_usd=lambda run: cluster.used_s(run) / SECONDS_PER_HOUR * USD_PER_HOUR,
            ),
        )


@contextmanager
def kubernetes_scene() -> Iterator[Scene]:
    """Members as Jobs of a cluster with two nodes."""
    with kubernetes_cluster() as (_, scene):
        yield scene
