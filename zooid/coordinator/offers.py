"""What `--on` means: a platform, and the offer whose sizes and prices hold there."""

import datetime

from msgspec import structs

from zooid.catalog import local_offer, offer
from zooid.core.errors import InputError
from zooid.core.machine import memory_bytes
from zooid.core.offer import Offer

LOCAL = "local"


def resolve_offer(on: str) -> Offer:
    """`local` is this machine at no cost; `local:OFFER` is this machine at the prices of a catalog offer."""
    platform, _, priced_like = on.partition(":")
    if platform != LOCAL:
        raise InputError(
            f"members cannot be started on {platform!r}; give local, or local:OFFER for the prices of a catalog "
            "offer, for example local:aws.lambda.1769"
        )
    own = local_offer(memory_bytes(), datetime.date.today().isoformat())
    if not priced_like:
        return own
    model = offer(priced_like)
    return structs.replace(
        own,
        name=f"{LOCAL}:{model.name}",
        usd_per_hour=model.usd_per_hour,
        usd_per_start=model.usd_per_start,
        billing_grain_s=model.billing_grain_s,
        billing_minimum_s=model.billing_minimum_s,
        source=f"sizes of this machine, prices of {model.name} ({model.source})",
        date=model.date,
    )


def prices_in_words(chosen: Offer) -> str:
    """Whose prices a bill is in, honestly: nothing is charged for one's own machine."""
    model = chosen.name.partition(":")[2]
    if model:
        return f"at the prices of {model}; nothing is charged, for the members run on this machine"
    return "this machine, at no cost" if chosen.usd_per_hour == 0 else f"at the prices of {chosen.name}"
