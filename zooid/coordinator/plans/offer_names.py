"""What `--on` means: a platform, and the offer whose sizes and prices hold there."""

import datetime
import math
from collections.abc import Sequence

from msgspec import structs

from zooid.catalog import local_offer, offer
from zooid.core.errors import InputError
from zooid.core.resources.machine import cpu_quota, memory_bytes
from zooid.core.resources.offer import Offer
from zooid.core.units import format_bytes
from zooid.platforms.platform import Size

LOCAL = "local"
LIMITED = "limited"


def resolve_offer(on: str) -> Offer:
    """`local` is this machine at no cost, `local:OFFER` this machine at the prices of a catalog offer, `limited:OFFER`
    the same with every member held to the offer's vCPUs and memory."""
    way, _, model_name = on.partition(":")
    if way not in (LOCAL, LIMITED):
        raise InputError(
            f"members cannot be started on {way!r}; give local, or local:OFFER for the prices of a catalog offer, or "
            "limited:OFFER for its size as well, for example limited:aws.lambda.1769"
        )
    own = local_offer(memory_bytes(), datetime.date.today().isoformat())
    if way == LIMITED and not model_name:
        raise InputError(f"{on!r} does not say to which size; give limited:OFFER, for example limited:aws.lambda.1769")
    if not model_name:
        return own
    model = offer(model_name)
    priced = structs.replace(
        own,
        name=f"{way}:{model.name}",
        usd_per_hour=model.usd_per_hour,
        usd_per_start=model.usd_per_start,
        billing_grain_s=model.billing_grain_s,
        billing_minimum_s=model.billing_minimum_s,
        source=f"sizes of this machine, prices of {model.name} ({model.source})",
        date=model.date,
    )
    return _with_size_of(model, priced) if way == LIMITED else priced


def resolve_offers(on: Sequence[str]) -> dict[str, Offer]:
    """Several of them, each by its name in the catalog, or as `local`; one that is named twice is refused."""
    found: dict[str, Offer] = {}
    for each in on:
        resolved = resolve_offer(each)
        name = resolved.name.rpartition(":")[2]
        if name in found:
            raise InputError(f"{found[name].name} and {resolved.name} name the same offer; give it once")
        found[name] = resolved
    if not found:
        raise InputError(f"no offer is given; give one or more, for example {LOCAL}")
    return found


def _with_size_of(model: Offer, priced: Offer) -> Offer:
    """A site of its own, since links are slower, too, for members that have little time to serve them."""
    if model.num_gpus:
        raise InputError(
            f"{model.name} has a {model.gpu}, which this machine cannot imitate; give an offer without GPUs"
        )
    if model.vcpus > cpu_quota() or model.memory_bytes > memory_bytes():
        raise InputError(
            f"{model.name} has {model.vcpus:g} vCPUs and {format_bytes(model.memory_bytes)} of memory, which is more "
            f"than this machine's {cpu_quota():g} and {format_bytes(memory_bytes())}; give a smaller offer, or "
            f"{LOCAL}:{model.name} for its prices alone"
        )
    return structs.replace(
        priced,
        site=priced.name,
        vcpus=model.vcpus,
        memory_bytes=model.memory_bytes,
        source=f"this machine, at size and prices of {model.name} ({model.source})",
    )


def held_to(chosen: Offer) -> Size | None:
    """What members on this offer have to be held to by whoever starts them; None where the machine sets the limits."""
    if chosen.platform == LOCAL and chosen.name.startswith(f"{LIMITED}:"):
        return Size(chosen.vcpus, chosen.memory_bytes)
    return None


def prices_in_words(chosen: Offer) -> str:
    """Whose prices a bill is in, honestly: nothing is charged for one's own machine."""
    model = chosen.name.partition(":")[2]
    if model:
        where = "this machine" if held_to(chosen) is None else "this machine, held to its size"
        return f"at the prices of {model}; nothing is charged, for the members run on {where}"
    return "this machine, at no cost" if chosen.usd_per_hour == 0 else f"at the prices of {chosen.name}"


def num_threads(offer: Offer) -> int:
    """Threads that a member computes with: one for each of its cores, a part of a core included."""
    return math.ceil(offer.vcpus)
