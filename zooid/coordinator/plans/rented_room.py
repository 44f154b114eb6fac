"""Room for the members of a plan on what is rented, which quotas limit: it is asked before any of them costs money."""

from collections import Counter

from zooid.core.errors import InputError
from zooid.core.plans.plan import FixedLayout, Plan
from zooid.core.resources.offer import Offer
from zooid.platforms import Platform


def check_rented_room(platform: Platform, given: Plan | FixedLayout) -> None:
    """Reject a plan with more members on an offer than the user's account may rent now."""
    for offer, num_members in Counter(_member_offers(given)).items():
        if offer.is_rented and not platform.has_room(num_members, offer.name):
            num_free = next((num for num in range(num_members - 1, 0, -1) if platform.has_room(num, offer.name)), 0)
            raise InputError(
                f"{num_members} members are to run on {offer.name}, but your account has room for {num_free} more now; "
                "plan with fewer members (--members, or a smaller --layout), or ask for a higher quota"
            )


def _member_offers(given: Plan | FixedLayout) -> list[Offer]:
    if isinstance(given, Plan):
        return given.member_offers
    return [
        given.offer_at(replica if given.num_replicas > 1 else stage)
        for replica in range(given.num_replicas)
        for stage in range(given.num_stages)
    ]
