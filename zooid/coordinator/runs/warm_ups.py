"""Warm-ups: while a run is prepared, functions import what its members will need.

Lambda keeps the process of a function that has ended, and uses it for the next one. So a member that does nothing
leaves a process behind that has imported torch, and a member that trains then starts in a second or two. Its time is
billed. Most of it would be billed anyway, since otherwise the member that trains would import torch.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from zooid.coordinator.plans.offer_names import num_threads
from zooid.core.plans.plan import FixedLayout, Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs.spec import WarmUpSpec
from zooid.platforms import Platform

_KEPT_S = 300.0
"""How long the process of a function is surely kept, although Lambda promises no time. Successors of members that live
for less find those that were warmed for them at the start."""
PATIENCE_S = 60.0
"""How long to wait for warm-ups at most. A large image may take long to arrive."""


def offers_to_warm(given: Plan | FixedLayout, platform: Platform) -> list[Offer]:
    """Return the offer of every process to warm: one for each member, and for each successor that follows soon.

    There are fewer if quotas allow fewer, beside the member that prepares the run.
    """
    counts = Counter(offer for offer in _member_offers(given) if offer.keeps_processes)
    warmed = []
    for offer, num_members in counts.items():
        has_successors = offer.lifetime_s is not None and offer.lifetime_s < _KEPT_S
        wanted = range(1, (2 * num_members if has_successors else num_members) + 1)
        num_allowed = bisect_left(wanted, True, key=lambda number: not platform.has_room(number, offer.name))
        warmed += [offer] * num_allowed
    return warmed


def warm_up_specs(offers: Sequence[Offer], run: str, store_url: str, roster: int) -> list[WarmUpSpec]:
    return [
        WarmUpSpec(run=run, member=f"warm-up-{number}", store=store_url, num_threads=num_threads(offer), roster=roster)
        for number, offer in enumerate(offers)
    ]


def _member_offers(given: Plan | FixedLayout) -> Sequence[Offer]:
    if isinstance(given, Plan):
        return given.member_offers
    if given.num_replicas > 1:
        return [given.offer_at(replica) for replica in range(given.num_replicas) for _ in range(given.num_stages)]
    return [given.offer_at(stage) for stage in range(given.num_stages)]
