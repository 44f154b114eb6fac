"""The platforms of a run, by the offers of its members."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from zooid.coordinator.plans.offer_names import LOCAL, enforced_size, num_threads
from zooid.coordinator.plans.own_offers import ray_cluster, slurm_partition, ssh_pool
from zooid.core.resources.offer import OWN_PLATFORMS, Offer
from zooid.platforms import Platform
from zooid.platforms.any_platform import AnyPlatform
from zooid.platforms.local import LocalPlatform
from zooid.platforms.ray import RayPlatform
from zooid.platforms.slurm import SlurmPlatform
from zooid.platforms.ssh import SshPlatform


def any_platform(*, forks: bool = True) -> AnyPlatform:
    """Return all platforms as one; `forks` says whether members of this machine may be forked from zygotes."""
    make: dict[str, Callable[[], Platform]] = {
        LOCAL: lambda: LocalPlatform(forks=forks),
        "ssh": lambda: SshPlatform(ssh_pool),
        "slurm": lambda: SlurmPlatform(slurm_partition),
        "ray": lambda: RayPlatform(ray_cluster),
    }
    return AnyPlatform(make, _platform_of)


@contextmanager
def opened_platform(given: Platform | None, offers: Iterable[Offer]) -> Iterator[Platform]:
    """Yield the given platform, or one for members on these offers, which is closed afterwards."""
    if given is not None:
        yield given
        return
    platform = _ready_platform(list(offers))
    try:
        yield platform
    finally:
        platform.release()


def _ready_platform(offers: Sequence[Offer]) -> Platform:
    """Return a platform that prepares for members on the first offer while the caller still plans."""
    if any(offer.is_elsewhere for offer in offers):
        return any_platform()
    platform = LocalPlatform()
    if enforced_size(offers[0]) is None:
        platform.expect(num_threads(offers[0]), uses_gpus=uses_gpus(offers[0]))
    return platform


def uses_gpus(offer: Offer) -> bool:
    """Whether a member on this offer may use the GPUs of its machine."""
    return (enforced_size(offer) is None and offer.kind == "owned") or offer.num_gpus > 0


def _platform_of(offer: str) -> str:
    beginning = offer.partition(".")[0]
    return beginning if beginning in OWN_PLATFORMS else LOCAL
