"""Offers of the user's own machines and clusters, from the file that lists them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from zooid.catalog.machines_file import OwnPlace, offer_of_place, own_places
from zooid.catalog.provider_accounts import Account, accounts
from zooid.coordinator.plans.known_places import KnownPlace, RayAddress
from zooid.coordinator.plans.machine_pools import machines_of, pooled
from zooid.core.environment import machines_file, ray_address
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.platforms import ray, slurm
from zooid.platforms.kubernetes import Namespace
from zooid.platforms.ray import RayCluster
from zooid.platforms.slurm import Cluster, SlurmPartition
from zooid.platforms.ssh import SshMachine, SshPlatform, SshPool

_asked: dict[str, tuple[OwnPlace, dict[str, Any]]] = {}
"""Places that were asked for their size, by the names of their offers, and what they have answered."""


def listed_places() -> dict[str, OwnPlace]:
    """Read the user's file of machines, by the names of the offers."""
    return own_places(Path(machines_file()))


def account_with(platform: str) -> Account:
    """Return the user's account with the provider of a platform."""
    return accounts(Path(machines_file()))[platform]


def place_named(name: str) -> OwnPlace:
    """Return the place of an offer. What ssh, Slurm or Ray knows by itself needs no entry in the file."""
    places = listed_places()
    if name in places:
        return places[name]
    platform, _, rest = name.partition(".")
    if (platform in ("ssh", "slurm") and rest) or name == "ray":
        return OwnPlace(name, {}, {})
    raise InputError(
        f"no machine is named {name!r}; {machines_file()} lists {', '.join(sorted(places)) or 'none'}: write a table "
        f"[{platform}.NAME] into it"
    )


def own_offer(name: str) -> Offer:
    """Return the offer of one member of an own place; the place is asked for sizes that the file does not have."""
    if name.startswith("ssh."):
        return _ssh_offer(name)
    place = place_named(name)
    if place.platform == "slurm" and not {"vcpus", "memory", "lifetime"} <= place.sizes.keys():
        return offer_of_place(place, slurm.asked_sizes(_cluster(place), _partition_name(place), place.sizes))
    if place.platform == "ray" and not {"vcpus", "memory", "members"} <= place.sizes.keys():
        return offer_of_place(place, ray.asked_sizes(_address(place), place.sizes))
    return offer_of_place(place)


def _ssh_offer(name: str) -> Offer:
    """Return the offer of a machine, or of several that are alike."""
    names = machines_of(name)
    with ThreadPoolExecutor(len(names)) as threads:
        offers = pooled(threads.map(_machine_offer, names))
    if len(offers) > 1:
        raise InputError(
            f"{name} names machines of different sites, sizes or prices; give them one by one: "
            + " ".join(f"--on {each}" for each in names)
        )
    return offers[0]


def _machine_offer(name: str) -> Offer:
    place = place_named(name)
    if {"vcpus", "memory"} <= place.sizes.keys():
        return offer_of_place(place)
    known = _asked.get(name)
    if known is None or known[0] != place:
        platform = SshPlatform(lambda machine: SshPool((_ssh_machine(machine),)))
        try:
            known = _asked[name] = (place, platform.sizes(name))
        finally:
            platform.release()
    return offer_of_place(*known)


def ssh_pool(offer: str) -> SshPool:
    """Return the machines of an offer, as ssh knows them."""
    names = machines_of(offer)
    return SshPool(tuple(map(_ssh_machine, names)), _machine_offer(names[0]).machine_members)


def _ssh_machine(offer: str) -> SshMachine:
    options = place_named(offer).options
    return SshMachine(**{"host": offer.partition(".")[2], **options})


def slurm_partition(offer: str) -> SlurmPartition:
    """Return the partition of an offer, and what its members get there."""
    place, sized = place_named(offer), own_offer(offer)
    return SlurmPartition(
        partition=_partition_name(place),
        cluster=_cluster(place),
        vcpus=sized.vcpus,
        memory_bytes=sized.memory_bytes,
        has_gpu=sized.num_gpus > 0,
        **{field: place.options[field] for field in ("python", "options") if field in place.options},
    )


def ray_cluster(offer: str) -> RayCluster:
    """Return the cluster of an offer, and what its members get there."""
    place, sized = place_named(offer), own_offer(offer)
    return RayCluster(
        address=_address(place),
        vcpus=sized.vcpus,
        memory_bytes=sized.memory_bytes,
        has_gpu=sized.num_gpus > 0,
        **{field: place.options[field] for field in ("python", "resources") if field in place.options},
        max_members=sized.max_members,
    )


def kubernetes_namespaces() -> dict[str, Namespace]:
    """Return the namespaces of clusters that the file of machines lists, by the names of their offers."""
    places = [place for place in listed_places().values() if place.platform == "kubernetes"]
    return {place.name: Namespace(place.name, **place.options) for place in places}


def _address(place: OwnPlace) -> str:
    return place.options.get("address", "") or ray_address()


def _partition_name(place: OwnPlace) -> str:
    return place.options.get("partition", place.name.partition(".")[2])


def _cluster(place: OwnPlace) -> Cluster:
    return Cluster(place.options.get("login", ""), place.options.get("config", ""))


def named_places() -> set[KnownPlace]:
    """Return the places that the file of machines and RAY_ADDRESS name, as handles of members name them."""
    found: set[KnownPlace] = {RayAddress(ray_address())}
    for place in listed_places().values():
        match place.platform:
            case "ssh":
                found.add(_ssh_machine(place.name))
            case "slurm":
                found.add(_cluster(place))
            case "ray":
                found.add(RayAddress(_address(place)))
    return found


def names_of(on: str) -> list[str]:
    """Return the names of the offers that `on` means: a single name, or all listed machines of a platform."""
    platform, dot, _ = on.partition(".")
    if dot or platform not in {place.platform for place in listed_places().values()}:
        return [on]
    return [name for name, place in listed_places().items() if place.platform == platform]
