"""Plans that keep the members which already train, and add others.

A search starts every member anew, so it does not know that members which stay need no time to start. These plans stand
beside its front, for a run that may switch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from zooid.core.plans.plan import Limits, Plan, TransportName
from zooid.planner.drafts import draft, evaluate
from zooid.planner.market import Market
from zooid.planner.mixed import shared_by_speed, whole_models


def plans_with(
    market: Market, present: Mapping[str, int], limits: Limits, grain_size: int, transport: TransportName
) -> list[Plan]:
    """Return predicted plans of one stage: so many members of each offer as are present, and more on one offer.

    The numbers of further members grow by about a third up to the limits. Plans that exceed a quota, a member's
    memory or the grains of a step are left out.
    """
    by_name = {offer.name: offer for offer in market.offers}
    if not present or any(name not in by_name for name in present):
        return []
    staying = [by_name[name] for name in sorted(Counter(present).elements())]
    num_grains = market.profile.batch_size // grain_size
    found: dict[tuple[str, ...], Plan] = {}
    for number in _numbers(min(limits.max_members, num_grains) - len(staying)):
        for offer in market.offers:
            members = [*staying, *[offer] * number]
            key = tuple(sorted(member.name for member in members))
            if key in found or not market.within_quotas(members):
                continue
            shares = shared_by_speed(market, members, grain_size)
            candidate = draft(whole_models(market, grain_size, transport, shares, limits), market)
            if candidate.missing_bytes <= 0:
                found[key] = evaluate(candidate)
    return list(found.values())


def _numbers(largest: int) -> Iterator[int]:
    """Yield numbers from 0 to the largest one. They grow by a third or more, so that there are few.

    >>> list(_numbers(14)), list(_numbers(0))
    ([0, 1, 2, 3, 4, 6, 9, 13, 14], [0])
    """
    number = 0
    while number < largest:
        yield number
        number = max(number + 1, 4 * number // 3 + (number > 3))
    if largest >= 0:
        yield largest
