"""Plans as fleets from which the policy chooses, and the market of their offers as it is now."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from zooid.coordinator.policy.situation import FleetOption, MarketOffer
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs.steering import Steering
from zooid.schedule.samples import even_shares


def option_of(plan: Plan, slowness: float = 1.0) -> FleetOption:
    """Return the fleet of a plan, whose steps take so many times as long as predicted."""
    return FleetOption(counts_in(plan), slowness * plan.prediction.step_s, cuts_of(plan))


def counts_in(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Return the numbers of members by offer."""
    return sorted_counts(offer.name for offer in plan.member_offers)


FleetKey = tuple[str, tuple[tuple[str, int], ...]]
"""What distinguishes fleets: the cuts in words, and the numbers of members by offer."""


def key_of(plan: Plan) -> FleetKey:
    return cuts_of(plan), counts_in(plan)


def sorted_counts(offers: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(offers).items()))


def cuts_of(plan: Plan) -> str:
    """Say which layers members have on which offers; empty if each member has all of them."""
    if len(plan.stages) == 1:
        return ""
    stages = ", ".join(f"{stage.first_layer}:{stage.end_layer} on {stage.offer}" for stage in plan.stages)
    return f"layers {stages} by {plan.schedule}" + (f" {plan.ahead} ahead" if plan.ahead else "")


def best_by_fleet(plans: Iterable[Plan]) -> dict[FleetKey, Plan]:
    """Return the fastest plan of each fleet."""
    best: dict[FleetKey, Plan] = {}
    for plan in plans:
        key = key_of(plan)
        if key not in best or plan.prediction.step_s < best[key].prediction.step_s:
            best[key] = plan
    return best


def keeps_members(plan: Plan, other: Plan) -> bool:
    """Whether members of one plan can go on in the other, beside new ones: each has the whole model in both."""
    are_whole = len(plan.stages) == len(other.stages) == 1 and plan.num_copies == other.num_copies == 0
    return are_whole and plan.all_reduce == other.all_reduce


def with_present_first(plan: Plan, present: Mapping[str, int]) -> Plan:
    """Return a plan of one stage whose replicas on present members' offers come first, so that these keep their ranks.

    A plan whose replicas are all on one offer stays as it is.
    """
    if not plan.replica_offers:
        return plan
    num_grains = -(-plan.batch_size // plan.grain_size)
    shares = plan.shares or even_shares(num_grains, plan.num_replicas)
    left = Counter(present)
    staying: list[tuple[str, int]] = []
    joining: list[tuple[str, int]] = []
    for offer, share in zip(plan.replica_offers, shares, strict=True):
        is_present = left[offer] > 0
        left[offer] -= is_present
        (staying if is_present else joining).append((offer, share))
    rows = [*staying, *joining]
    return structs.replace(
        plan, replica_offers=tuple(offer for offer, _ in rows), shares=tuple(share for _, share in rows)
    )


@dataclass(frozen=True)
class FleetMarket:
    """The offers of a run, as they can be had now."""

    steering: Steering
    has_room: Callable[[int, str], bool]
    """Returns whether so many more members can be started on the offer of this name."""
    usd_per_hour: Callable[[Offer], float]
    """Returns the present price of an offer."""

    def offers(
        self, plans: Sequence[Plan], running: Mapping[str, int], least_startup_s: float = 0.0
    ) -> dict[str, MarketOffer]:
        """Return the offers of these plans and of the running members.

        `least_startup_s` is how long members have needed to start so far.
        """
        most: Counter[str] = Counter(running)
        for plan in plans:
            for offer, number in counts_in(plan):
                most[offer] = max(most[offer], number)
        return {
            offer.name: MarketOffer(
                name=offer.name,
                usd_per_hour=self.usd_per_hour(offer),
                num_available=self.num_available(offer.name, running.get(offer.name, 0), most[offer.name]),
                startup_s=max(offer.startup_s or 0.0, least_startup_s),
                is_reliable=offer.market != "spot",
            )
            for offer in (*self.steering.offers, *(offer for plan in plans for offer in plan.offers))
        }

    def num_available(self, offer: str, num_running: int, num_wanted: int) -> int:
        """Return on how many members of an offer the run could go on now, at most `num_wanted` or those that run."""
        num_more = num_wanted - num_running
        while num_more > 0 and not self.has_room(num_more, offer):
            num_more -= 1
        return num_running + max(0, num_more)

    def quotas(self, running: Mapping[str, int], avoids: Callable[[str], bool]) -> dict[str, int]:
        """Return how many members each offer may have now. An avoided offer gets none beside those that run."""
        return {
            offer.name: running.get(offer.name, 0)
            if avoids(offer.name)
            else self.num_available(offer.name, running.get(offer.name, 0), self.steering.max_members)
            for offer in self.steering.offers
        }

    def priced_steering(self) -> Steering:
        """Return the rules with the present prices of all offers."""
        offers = tuple(structs.replace(offer, usd_per_hour=self.usd_per_hour(offer)) for offer in self.steering.offers)
        return structs.replace(self.steering, offers=offers)
