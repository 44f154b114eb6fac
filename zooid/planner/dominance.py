"""Offers that another offer of the same site beats in every respect, so that no plan needs them.

Whatever plan has a member on such an offer, the same plan with the better offer is as fast and as cheap at least. So
leaving them out loses nothing, and catalogs have many: every on-demand machine beside the same machine on spot.
"""

import math
from dataclasses import replace

import numpy as np

from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import LeftOut
from zooid.core.resources.offer import Offer
from zooid.planner.market import Market, is_named
from zooid.predictor.equations.array_checks import Array

_REASON = "an offer at the same site is as good or better in every respect"


def without_dominated(market: Market) -> Market:
    """Return the market without offers that another one dominates; they are listed among those that are left out.

    An offer whose members are limited, by itself or by a quota, dominates no other one, as there may be too few of it.
    """
    kept: list[Offer] = []
    beaten: list[str] = []
    numbers = {offer.name: _numbers(market.world.profile_of(offer)) for offer in market.offers}
    places = {offer.name: place for place, offer in enumerate(market.offers)}
    for offer in market.offers:
        rivals = (other for other in market.offers if other.site == offer.site and _may_dominate(other, market))
        if any(
            _is_as_good(other, offer)
            and _is_as_fast(numbers[other.name], numbers[offer.name])
            and not (places[other.name] > places[offer.name] and _are_alike(other, offer, numbers))
            for other in rivals
            if other is not offer
        ):
            beaten.append(offer.name)
        else:
            kept.append(offer)
    if not beaten:
        return market
    left_out = LeftOut(offers=tuple(beaten), reason=_REASON)
    return replace(market.of(kept), left_out=(*market.left_out, left_out))


def _may_dominate(offer: Offer, market: Market) -> bool:
    is_limited = offer.max_members is not None or any(is_named(offer.name, name) for name in market.quotas)
    return not is_limited and not offer.sized_by and offer.platform != "local"


def _is_as_good(one: Offer, other: Offer) -> bool:
    """Whether an offer is at least as good as another one in all but speed."""
    whole_grains = other.billing_grain_s / one.billing_grain_s
    return (
        one.usd_per_hour <= other.usd_per_hour
        and one.usd_per_start <= other.usd_per_start
        and one.billing_minimum_s <= other.billing_minimum_s
        and whole_grains == round(whole_grains)
        and one.memory_bytes >= other.memory_bytes
        and one.member_bytes >= other.member_bytes
        and _lifetime_s(one) >= _lifetime_s(other)
        and (one.losses_per_s or 0.0) <= (other.losses_per_s or 0.0)
        and (one.startup_s or 0.0) <= (other.startup_s or 0.0)
        and one.accepts_connections >= other.accepts_connections
        and one.has_shared_memory >= other.has_shared_memory
        and one.machine_members == other.machine_members
        and not other.sized_by
    )


def _lifetime_s(offer: Offer) -> float:
    return math.inf if offer.lifetime_s is None else offer.lifetime_s


def _numbers(profile: Profile) -> tuple[object, Array]:
    """Everything of a profile that differs between offers: what has to be the same, and what is better if smaller."""
    device = profile.device
    points = [point for layer in profile.layers for point in layer.points]
    smaller = [
        profile.load_s_per_sample,
        profile.optimizer_s_per_byte,
        profile.reduce_s_per_byte,
        profile.startup_cpu_s,
        profile.between_steps_s,
        float(profile.runtime_bytes),
        profile.memory_overhead,
        -float(profile.largest_grain),
        *(point.forward_s for point in points),
        *(point.backward_s for point in points),
    ]
    return (device.kind, device.copies, tuple(point.num_samples for point in points)), np.array(smaller)


def _is_as_fast(one: tuple[object, Array], other: tuple[object, Array]) -> bool:
    return one[0] == other[0] and bool((one[1] <= other[1]).all())


def _are_alike(one: Offer, other: Offer, numbers: dict[str, tuple[object, Array]]) -> bool:
    """Whether each of two offers is as good as the other, so that one of them has to stay."""
    return _is_as_good(other, one) and _is_as_fast(numbers[other.name], numbers[one.name])
