"""Members as Jobs of a Kubernetes cluster, one Job for each."""

from collections.abc import Callable

from zooid.core.resources.offer import Offer
from zooid.platforms.kubernetes.cluster_clients import ClusterClients
from zooid.platforms.kubernetes.member_jobs import KubernetesJobs
from zooid.platforms.kubernetes.namespaces import Namespace
from zooid.platforms.provider_platform import ProviderPlatform

__all__ = ["Namespace", "kubernetes_platform"]


def kubernetes_platform(
    namespaces: Callable[[], dict[str, Namespace]], offer_of: Callable[[str], Offer], patience: float = 1.0
) -> ProviderPlatform:
    """Return the platform. `namespaces` returns the tables of the file of machines, by the names of their offers.

    With less `patience` than 1, members that do not start are given up sooner.
    """
    clients = ClusterClients(namespaces)
    return ProviderPlatform(
        "kubernetes",
        lambda where: KubernetesJobs(clients.at(where), clients.namespace_of, patience),
        lambda offer: clients.of(offer.name).where,
        offer_of,
    )
