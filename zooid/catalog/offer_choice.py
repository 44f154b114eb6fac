"""Which offers of the catalog are meant, and in which order they are compared."""

import math
from collections.abc import Iterable
from typing import Literal, get_args

from zooid.core.errors import InputError
from zooid.core.records import Record
from zooid.core.resources.offer import Market, Offer, OfferKind
from zooid.core.text import quoted

Order = Literal["price", "gpu-price", "vcpu-price", "name"]
ORDERS: tuple[Order, ...] = get_args(Order)


class OfferChoice(Record, frozen=True, kw_only=True):
    """Conditions that offers meet; a condition that is not given is met by all."""

    names: tuple[str, ...] = ()
    """Names, or their dotted beginnings, such as `aws.us-east-1`; an offer has one of them."""
    gpus: tuple[str, ...] = ()
    """Models of accelerators, of which an offer has one."""
    min_gpus: int = 0
    min_memory_bytes: int = 0
    market: Market | None = None
    kind: OfferKind | None = None
    region: str = ""
    max_usd_per_hour: float = math.inf

    def fits(self, offer: Offer) -> bool:
        """Whether an offer meets all conditions."""
        return (
            (not self.names or any(f"{offer.name}.".startswith(f"{name}.") for name in self.names))
            and (not self.gpus or offer.gpu in self.gpus)
            and offer.num_gpus >= self.min_gpus
            and offer.memory_bytes >= self.min_memory_bytes
            and self.market in (None, offer.market)
            and self.kind in (None, offer.kind)
            and self.region in ("", offer.region)
            and offer.usd_per_hour <= self.max_usd_per_hour
        )


def chosen_offers(offers: Iterable[Offer], choice: OfferChoice, order: Order = "price") -> list[Offer]:
    """Return the offers that fit, the cheapest first, or by name. InputError if one of the names means no offer."""
    offers = list(offers)
    for name in choice.names:
        if not any(OfferChoice(names=(name,)).fits(offer) for offer in offers):
            raise InputError(
                f"no offer is named {quoted(name)!r}, or begins with {quoted(name)}. ; `zooid catalog` lists all"
            )
    known_gpus = {offer.gpu for offer in offers}
    for gpu in choice.gpus:
        if gpu not in known_gpus:
            known = ", ".join(sorted(known_gpus - {""}))
            raise InputError(f"no offer has a {quoted(gpu)}; the catalog has {known}")
    fitting = [offer for offer in offers if choice.fits(offer)]
    return sorted(fitting, key=lambda offer: (_rank(offer, order), offer.name))


def usd_per_gpu_hour(offer: Offer) -> float | None:
    """Return the price of an hour for each accelerator; None if the offer has none."""
    return offer.usd_per_hour / offer.num_gpus if offer.num_gpus else None


def _rank(offer: Offer, order: Order) -> float:
    match order:
        case "price":
            return offer.usd_per_hour
        case "gpu-price":
            usd = usd_per_gpu_hour(offer)
            return math.inf if usd is None else usd
        case "vcpu-price":
            return offer.usd_per_hour / offer.vcpus
        case "name":
            return 0.0
