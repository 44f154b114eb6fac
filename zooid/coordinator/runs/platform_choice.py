"""The platforms of a run, by the offers of its members."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from zooid.catalog.sky_machines import sky_machine
from zooid.coordinator.plans.known_places import KnownPlaces
from zooid.coordinator.plans.offer_names import LIMITED, LOCAL, enforced_size, num_threads, rented_offer
from zooid.coordinator.plans.own_offers import (
    account_with,
    kubernetes_namespaces,
    named_places,
    own_offer,
    ray_cluster,
    slurm_partition,
    ssh_pool,
)
from zooid.core.resources.offer import OWN_PLATFORMS, Offer
from zooid.core.runs.spec import MemberSpec, ProfilerSpec, WorkerSpec
from zooid.core.runs.ticket import GpuUse
from zooid.platforms import Platform
from zooid.platforms.any_platform import AnyPlatform
from zooid.platforms.aws_lambda.functions import function_platform
from zooid.platforms.aws_lambda.microvms import microvm_platform
from zooid.platforms.azure_container import group_platform, job_platform
from zooid.platforms.cloud_run import cloud_run_platform
from zooid.platforms.kubernetes import kubernetes_platform
from zooid.platforms.local import LocalPlatform
from zooid.platforms.ray import RayPlatform
from zooid.platforms.skypilot import skypilot_platform
from zooid.platforms.slurm import SlurmPlatform
from zooid.platforms.ssh import SshPlatform


def any_platform(*, forks: bool = True, trusts_handles: bool = False, emulates_rented: bool = False) -> AnyPlatform:
    """Return all platforms as one; `forks` says whether members of this machine may be forked from zygotes.

    With `trusts_handles`, members are looked for wherever their handles say. With `emulates_rented`, members of rented
    offers run on this machine, as in a rehearsal.
    """
    make: dict[str, Callable[[], Platform]] = {
        LOCAL: lambda: LocalPlatform(forks=forks),
        "ssh": lambda: SshPlatform(ssh_pool),
        "slurm": lambda: SlurmPlatform(slurm_partition),
        "ray": lambda: RayPlatform(ray_cluster),
        "aws_lambda": lambda: function_platform(account_with("aws_lambda"), rented_offer),
        "aws_microvm": lambda: microvm_platform(account_with("aws_microvm"), rented_offer),
        "azure_container": lambda: group_platform(account_with("azure_container"), rented_offer),
        "azure_job": lambda: job_platform(account_with("azure_job"), rented_offer),
        "cloud_run": lambda: cloud_run_platform(account_with("cloud_run"), rented_offer),
        "kubernetes": lambda: kubernetes_platform(kubernetes_namespaces, own_offer),
        "skypilot": lambda: skypilot_platform(account_with("skypilot"), rented_offer, sky_machine),
    }
    platform_of = partial(_platform_of, emulates_rented=emulates_rented)
    if trusts_handles:
        return AnyPlatform(make, platform_of)
    return AnyPlatform(make, platform_of, KnownPlaces(named_places).follow)


@contextmanager
def opened_platform(given: Platform | None, offers: Iterable[Offer], *, forks: bool = True) -> Iterator[Platform]:
    """Yield the given platform, or one for members on any offers, which is closed afterwards.

    If `forks` is true and the first offer is this machine, it prepares for members there while the caller still plans.
    """
    if given is not None:
        yield given
        return
    offers = list(offers)
    first = offers[0]
    platform = any_platform(forks=forks, emulates_rented=not any(offer.is_rented for offer in offers))
    if forks and not first.is_elsewhere and enforced_size(first) is None:
        local = platform.of(LOCAL)
        assert isinstance(local, LocalPlatform)
        local.expect(num_threads(first), uses_gpus=uses_gpus(first))
    try:
        yield platform
    finally:
        platform.release()


def uses_gpus(offer: Offer) -> bool:
    """Whether a member on this offer may use the GPUs of its machine."""
    return (enforced_size(offer) is None and offer.kind == "owned") or offer.num_gpus > 0


def gpu_use(offer: Offer, spec: MemberSpec) -> GpuUse:
    """Return how a member on this offer uses GPUs. Members that train or measure a job get one each."""
    if not uses_gpus(offer):
        return "none"
    trains = isinstance(spec, WorkerSpec) and spec.task == "train"
    measures = isinstance(spec, ProfilerSpec) and spec.device != "cpu"
    if not (trains or measures):
        return "seen"
    return "own" if offer.is_elsewhere and offer.num_gpus > 0 else "shared"


def _platform_of(offer: str, *, emulates_rented: bool) -> str:
    beginning = offer.partition(".")[0]
    if beginning in OWN_PLATFORMS:
        return beginning
    is_here = emulates_rented or offer.partition(":")[0] in (LOCAL, LIMITED)
    return LOCAL if is_here else rented_offer(offer).platform
