"""The tables that ship with zooid: offers, prices, regions and links, each row with a source and a date."""

import difflib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

from zooid.catalog.csv_rows import AnyRecord, read_rows
from zooid.core.errors import CatalogError
from zooid.core.resources.link import Link
from zooid.core.resources.offer import DeviceScore, EgressPrice, Offer, Region, StoragePrice, require_price
from zooid.core.resources.sized_offer import SizedOffer


@cache
def offers() -> tuple[Offer, ...]:
    """All offers that can be rented, in file order. Of those that are sized by resource, the sizes to begin with."""
    fixed = read_table("offers.csv", Offer, ("name",), check_offer, without=("sized_by",))
    return (*(offer for sized in sized_offers() for offer in sized.smallest_offers()), *fixed)


@cache
def sized_offers() -> tuple[SizedOffer, ...]:
    """The offers that are sized by resource, in file order."""

    def check(sized: SizedOffer) -> None:
        for offer in sized.smallest_offers():
            check_offer(offer)

    return read_table("sized_offers.csv", SizedOffer, ("name",), check)


def sized_offer(name: str) -> SizedOffer | None:
    """The sized offer that has this name, or whose sizes have names like this one; None if there is none."""
    return next((sized for sized in sized_offers() if f"{name}.".startswith(f"{sized.name}.")), None)


def check_offer(offer: Offer) -> None:
    """Reject prices that are implausible for a member of this size, since they are in another unit."""
    max_usd = 20.0 * offer.num_gpus + 1.0 * offer.vcpus + 0.1 * offer.memory_bytes / 1e9
    unit = "dollars, not cents, for an hour of the whole member, not for a month"
    require_price("usd_per_hour", offer.usd_per_hour, max_usd, unit, offer.name)
    unit = "dollars for one start, not for a thousand or a million"
    require_price("usd_per_start", offer.usd_per_start, 0.01, unit, offer.name)


def offer(name: str) -> Offer:
    """The offer of this name, with a size that is fixed; an unknown name is rejected with the closest ones."""
    fixed = {row.name: row for row in offers() if not row.sized_by}
    if name in fixed:
        return fixed[name]
    sized = sized_offer(name)
    if sized is not None and sized.name != name:
        return sized.named(name)
    if sized is not None:
        raise CatalogError(f"{name} has many sizes; give one, for example {sized.smallest_offers()[0].name}")
    known = [row.name for row in offers()]
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(nearest)}?" if nearest else f"the catalog holds {', '.join(known)}"
    raise CatalogError(f"there is no offer {name!r} in the catalog; {hint}")


@cache
def device_scores() -> tuple[DeviceScore, ...]:
    """Peak performance of each kind of device."""
    return read_table("devices.csv", DeviceScore, ("device",))


def reference_score(offer: Offer) -> float:
    """Peak floating-point operations per second of one member on this offer."""
    known = {row.device: row.flops_per_s for row in device_scores()}
    device, count = (offer.gpu, float(offer.num_gpus)) if offer.gpu else ("vcpu", offer.vcpus)
    if device not in known:
        raise CatalogError(
            f"the catalog does not know the speed of {device} of {offer.name}; it knows {', '.join(known)}: measure "
            "the job on that offer instead"
        )
    return known[device] * count


@cache
def egress_prices() -> tuple[EgressPrice, ...]:
    """Prices of outgoing traffic; zones are `us`, `eu`, `asia`, `oce`, `same_region`, `internet` and `anywhere`."""
    return read_table("egress.csv", EgressPrice, ("provider", "source_zone", "target_zone"))


@cache
def storage_prices() -> tuple[StoragePrice, ...]:
    """Prices of object stores for requests and storage."""
    return read_table("storage.csv", StoragePrice, ("provider", "service", "region"))


@cache
def regions() -> tuple[Region, ...]:
    """The continents of regions, which prices depend on."""
    return read_table("regions.csv", Region, ("provider", "region"))


@cache
def links() -> tuple[Link, ...]:
    """Measured links between sites, one row for each measured direction."""
    return read_table("links.csv", Link, ("from_site", "to_site"))


def read_table(
    file_name: str,
    kind: type[AnyRecord],
    key: Sequence[str],
    check: Callable[[AnyRecord], None] | None = None,
    without: Sequence[str] = (),
) -> tuple[AnyRecord, ...]:
    """Read a file in `data/`; see `read_rows`."""
    text = resources.files("zooid.catalog").joinpath("data", file_name).read_text(encoding="utf-8")
    return read_rows(text, file_name, kind, key, check, without)
