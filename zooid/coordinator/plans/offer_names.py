"""The names that `--on` accepts: this machine, optionally with the prices or the size of a catalog offer."""

import datetime
import math
from collections.abc import Iterable, Sequence

from msgspec import structs

from zooid.catalog import local_offer, offer, sized_offer
from zooid.coordinator.plans.machine_pools import pooled
from zooid.coordinator.plans.own_offers import account_with, names_of, own_offer
from zooid.core.errors import CatalogError, InputError
from zooid.core.resources.machine import cpu_quota, memory_bytes
from zooid.core.resources.offer import OWN_PLATFORMS, RENTED_PLATFORMS, Offer
from zooid.core.resources.size import Size
from zooid.core.units import format_bytes

LOCAL = "local"
LIMITED = "limited"
PLATFORMS = (LOCAL, *OWN_PLATFORMS, *RENTED_PLATFORMS)
"""Platforms on which members can be started."""
_ONLY_PLANNED = {"alibaba_fc": "Alibaba Function Compute"}
"""Services in the catalog on which no members can be started, by their names there."""
_UNREACHABLE = ("skypilot",)
"""Platforms that open no port to members for one another, though machines of their offers could accept connections."""


def resolve_offer(on: str) -> Offer:
    """Return the offer that `on` names.

    `local` is this machine at no cost, and `local:OFFER` this machine at the prices of a catalog offer. `limited:OFFER`
    also limits every member to the offer's vCPUs and memory. `ssh.NAME` is another machine, and `aws.lambda.1769` an
    offer of the catalog, which is rented.
    """
    form, _, model_name = on.partition(":")
    if form.partition(".")[0] in OWN_PLATFORMS:
        return own_offer(on)
    if form not in (LOCAL, LIMITED):
        return rented_offer(on)
    this_machine = local_offer(memory_bytes(), datetime.date.today().isoformat())
    if form == LIMITED and not model_name:
        raise InputError(f"{on!r} names no size; give limited:OFFER, for example limited:aws.lambda.1769")
    if not model_name:
        return this_machine
    model = offer(model_name)
    priced = structs.replace(
        this_machine,
        name=f"{form}:{model.name}",
        usd_per_hour=model.usd_per_hour,
        usd_per_start=model.usd_per_start,
        billing_grain_s=model.billing_grain_s,
        billing_minimum_s=model.billing_minimum_s,
        source=f"sizes of this machine, prices of {model.name} ({model.source})",
        date=model.date,
    )
    return _with_size_of(model, priced) if form == LIMITED else priced


def rented_offer(name: str) -> Offer:
    """Return an offer of the catalog on which members can be started, as the user's account limits and knows it."""
    try:
        named = offer(name)
    except CatalogError as error:
        raise InputError(
            f"members cannot be started on {name!r}; give local, or local:OFFER for the prices of a catalog offer, or "
            "limited:OFFER for its size as well, for example limited:aws.lambda.1769; one of your own machines, for "
            f"example ssh.gpu1; or an offer to rent, for example aws.lambda.1769 ({error})"
        ) from error
    if not named.is_rented:
        service = _ONLY_PLANNED.get(named.platform, named.platform)
        raise InputError(
            f"zooid starts no members on {service}; {named.name} can be planned and predicted with. To train, give an "
            f"offer of {', '.join(RENTED_PLATFORMS)}, for example aws.lambda.1769"
        )
    return _as_account_has(named)


def _as_account_has(rented: Offer) -> Offer:
    account = account_with(rented.platform)
    lifetimes_s = [each for each in (rented.lifetime_s, account.lifetime_s) if each is not None]
    startup_s = rented.startup_s if account.startup_s is None else account.startup_s
    return structs.replace(
        rented,
        lifetime_s=min(lifetimes_s, default=None),
        startup_s=startup_s,
        accepts_connections=rented.accepts_connections and rented.platform not in _UNREACHABLE,
    )


def offers_to_start(on: Iterable[str]) -> list[Offer]:
    """Return the offers that these names mean, on which members can be started. Machines that are alike are one.

    The name of an offer that is sized by resource, as `aws.lambda`, means the sizes from which a planner chooses.
    """
    return pooled(offer for each in on for offer in _offers_of(each))


def _offers_of(on: str) -> list[Offer]:
    sized = sized_offer(on)
    if sized is None or sized.name != on:
        return [resolve_offer(name) for name in names_of(on)]
    rented_offer(sized.largest_offer.name)  # rejects a service on which no member can be started
    return [_as_account_has(offer) for offer in sized.smallest_offers()]


def largest_of(chosen: Offer) -> Offer:
    """Return the offer itself, or the largest size of the offer from whose sizes a planner chooses."""
    sized = sized_offer(chosen.sized_by) if chosen.sized_by else None
    if sized is None:
        return chosen
    largest = sized.largest_offer
    return structs.replace(
        chosen,
        name=largest.name,
        vcpus=largest.vcpus,
        memory_bytes=largest.memory_bytes,
        usd_per_hour=largest.usd_per_hour,
        sized_by="",
    )


def largest_offers(on: Iterable[str]) -> list[Offer]:
    """Return the offers that these names mean, each sized offer once and as large as it can be."""
    return list({offer.name: offer for offer in map(largest_of, offers_to_start(on))}.values())


def only_offer(on: str) -> Offer:
    """Return the one offer that this name means, on which members can be started."""
    offers = offers_to_start([on])
    if len(offers) > 1:
        raise InputError(f"{on!r} means {', '.join(offer.name for offer in offers)}; give one of them")
    return offers[0]


def one_or_sizes(on: str) -> tuple[Offer, ...]:
    """Return the one offer that this name means, or the sizes of one offer from which a planner chooses."""
    offers = offers_to_start([on])
    return tuple(offers) if offers[0].sized_by == on else (only_offer(on),)


def resolve_offers(on: Sequence[str]) -> dict[str, Offer]:
    """Return several offers by their names in the catalog, or as `local`; reject one that is named twice.

    Machines that are alike are one offer, whether they are named together or one by one. The name of an offer that is
    sized by resource, as `aws.lambda`, means its largest size.
    """
    by_name: dict[str, Offer] = {}
    for resolved in (each for text in on for each in largest_offers([text])):
        name = resolved.name.rpartition(":")[2]
        if name in by_name:
            raise InputError(f"{by_name[name].name} and {resolved.name} name the same offer; give it once")
        by_name[name] = resolved
    if not by_name:
        raise InputError(f"no offer is given; give one or more, for example {LOCAL}")
    return {offer.name.rpartition(":")[2]: offer for offer in pooled(by_name.values())}


def _with_size_of(model: Offer, priced: Offer) -> Offer:
    """Limit an offer to the size of another. It gets its own site, because its members also have slower links."""
    if model.num_gpus:
        raise InputError(
            f"{model.name} has a {model.gpu}, which this machine cannot emulate; give an offer without GPUs"
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


def enforced_size(chosen: Offer) -> Size | None:
    """Return the size to which the platform has to limit members on this offer; None if it sets no limit."""
    if chosen.platform == LOCAL and chosen.name.startswith(f"{LIMITED}:"):
        return Size(chosen.vcpus, chosen.memory_bytes)
    return None


def enforced_lifetime_s(chosen: Offer) -> float | None:
    """Return the time after which members on this offer are ended; None if only its prices count here."""
    return None if chosen.name.startswith(f"{LOCAL}:") else chosen.lifetime_s


def prices_in_words(chosen: Offer) -> str:
    """Describe the source of the prices in a bill."""
    model = chosen.name.partition(":")[2]
    if model:
        where = "this machine" if enforced_size(chosen) is None else "this machine, limited to its size"
        return f"at the prices of {model}; nothing is charged, because members run on {where}"
    return "this machine, at no cost" if chosen.usd_per_hour == 0 else f"at the prices of {chosen.name}"


def num_threads(offer: Offer) -> int:
    """Return the number of threads of a member: one for each core, with a fraction rounded up."""
    return math.ceil(offer.vcpus)
