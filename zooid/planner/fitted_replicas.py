"""Plans of one stage whose members have just the memory that the whole model needs.

Families try given sizes. Where the memory of a size determines its speed, the smallest size that holds the model lies
between two of them.
"""

from collections.abc import Iterator
from math import ceil

from zooid.core.plans.plan import Limits
from zooid.core.resources.offer import Offer
from zooid.planner.drafts import Draft, draft
from zooid.planner.families import grain_sizes, replica_counts, transports
from zooid.planner.market import Market
from zooid.planner.member_sizes import sizes_of


def fitted_replicas(market: Market, limits: Limits) -> Iterator[Draft]:
    """Draft every number of replicas with every grain size, on each offer whose memory determines its speed."""
    if limits.num_stages not in (None, 1):
        return
    tried = {offer.name for offer in market.offers}
    for offer in _smallest_offers(market):
        profile = market.world.profile_of(offer)
        max_members = market.max_members_on(offer, limits.max_members)
        for transport in transports(market, offer, limits):
            for num_replicas, is_insured in replica_counts(limits, offer, transport, max_members):
                for grain_size in grain_sizes(profile):
                    if num_replicas > ceil(profile.batch_size / grain_size):
                        continue
                    plan = market.plan(
                        [(0, len(profile.layers))],
                        [offer],
                        num_replicas=num_replicas,
                        grain_size=grain_size,
                        transport=transport,
                        reproducible=limits.reproducible,
                        insured=is_insured,
                    )
                    if plan.num_members <= max_members:
                        drafted = draft(plan, market)
                        if drafted.plan.stages[0].offer not in tried:
                            yield drafted


def _smallest_offers(market: Market) -> list[Offer]:
    """The smallest offer of each sized offer whose memory determines its speed."""
    growing = [offer for offer in market.offers if offer.sized_by and sizes_of(offer).is_faster_with_memory]
    largest_first = sorted(growing, key=lambda offer: -offer.memory_bytes)
    return list({offer.sized_by: offer for offer in largest_first}.values())
