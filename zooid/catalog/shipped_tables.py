"""The tables that ship with zooid: offers, prices, regions and links, each row with its source and its date."""

import difflib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

from zooid.catalog.csv_rows import AnyRecord, read_rows
from zooid.core.errors import CatalogError
from zooid.core.resources.link import Link
from zooid.core.resources.offer import DeviceScore, EgressPrice, Offer, Region, StoragePrice, require_price


@cache
def offers() -> tuple[Offer, ...]:
    """Everything that can be rented, in the order of the file."""
    return _table("offers.csv", Offer, ("name",), check_offer)


def check_offer(offer: Offer) -> None:
    """Refuse prices that nobody asks for a member of this size: they are in another unit."""
    most = 20.0 * offer.num_gpus + 1.0 * offer.vcpus + 0.1 * offer.memory_bytes / 1e9
    unit = "dollars, not cents, for an hour of the whole member, not for a month"
    require_price("usd_per_hour", offer.usd_per_hour, most, unit, offer.name)
    unit = "dollars for one start, not for a thousand or a million"
    require_price("usd_per_start", offer.usd_per_start, 0.01, unit, offer.name)


def offer(name: str) -> Offer:
    """The offer of this name; an unknown name is refused with the nearest ones."""
    known = {each.name: each for each in offers()}
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(nearest)}?" if nearest else f"the catalog holds {', '.join(known)}"
        raise CatalogError(f"there is no offer {name!r} in the catalog; {hint}")
    return known[name]


@cache
def device_scores() -> tuple[DeviceScore, ...]:
    """What kinds of devices compute at best."""
    return _table("devices.csv", DeviceScore, ("device",))


def reference_score(offer: Offer) -> float:
    """Floating-point operations a second of one member on this offer, at best: of its accelerators, or of its cores."""
    known = {each.device: each.flops_per_s for each in device_scores()}
    device, count = (offer.gpu, float(offer.num_gpus)) if offer.gpu else ("vcpu", offer.vcpus)
    if device not in known:
        raise CatalogError(
            f"the catalog does not say how fast {device} of {offer.name} is; it knows {', '.join(known)}: measure the "
            "job on that offer instead"
        )
    return known[device] * count


@cache
def egress_prices() -> tuple[EgressPrice, ...]:
    """What leaving a place costs; zones are `us`, `eu`, `asia`, `oce`, `same_region`, `internet` and `anywhere`."""
    return _table("egress.csv", EgressPrice, ("provider", "source_zone", "target_zone"))


@cache
def storage_prices() -> tuple[StoragePrice, ...]:
    """What object stores charge for requests and for what lies in them."""
    return _table("storage.csv", StoragePrice, ("provider", "service", "region"))


@cache
def regions() -> tuple[Region, ...]:
    """On which continents the regions are that prices depend on."""
    return _table("regions.csv", Region, ("provider", "region"))


@cache
def links() -> tuple[Link, ...]:
    """Measured links between sites, one row for each direction that was measured."""
    return _table("links.csv", Link, ("from_site", "to_site"))


def _table(
    file_name: str, kind: type[AnyRecord], key: Sequence[str], check: Callable[[AnyRecord], None] | None = None
) -> tuple[AnyRecord, ...]:
    text = resources.files("zooid.catalog").joinpath("data", file_name).read_text(encoding="utf-8")
    return read_rows(text, file_name, kind, key, check)
