"""Lots: all plans of one kind on some offers, before any of them is made.

A lot has lower bounds of time and cost that hold for every plan of it. So a search over thousands of offers makes plans
only where some plan can still be on the front.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from zooid.core.plans.plan import Limits, Plan
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.drafts import Draft, draft
from zooid.planner.families import Family, families, grain_sizes
from zooid.planner.fitted_replicas import fitted_replicas
from zooid.planner.market import Market
from zooid.planner.mixed import connected_sites, mixed_plans, site_plans
from zooid.planner.mixed_stages import SEARCH_S, by_site
from zooid.predictor.costs.bill import bill_usd
from zooid.predictor.equations.array_checks import Array

Promise = Callable[[Family | Draft], tuple[float, int, int, int]]
MIXED_S = 1.5
"""Time limit of all optimisers together that mix offers, if there are many sites."""
_NUM_MIXED_GRAINS = 2
"""Number of grain sizes for which mixed members are searched, unless the number of stages is required."""


@dataclass(frozen=True, eq=False)
class Lot:
    """All plans of one kind whose members are on some of these offers."""

    market: Market
    """The offers, at the prices of one store."""
    limits: Limits
    num_members: int
    """The least number of members of its plans."""
    make: Callable[[Market], Iterator[Family | Draft]]

    @cached_property
    def lower_bound(self) -> tuple[float, float]:
        """Lower bounds of the run's seconds and dollars, if nothing but the layers took time on the best offers."""
        profile, offers = self.market.profile, self.market.offers
        work_s = np.array([self._layers_s(offer) for offer in offers])
        usd_per_s = np.array([offer.usd_per_hour / SECONDS_PER_HOUR for offer in offers])
        num_batches = profile.num_samples * profile.epochs / profile.batch_size
        starting_s = min(offer.startup_s or 0.0 for offer in offers)
        if _can_grow(offers):  # then members may be faster than any of these offers
            return starting_s, 0.0
        run_s = starting_s + num_batches * float(work_s.min(axis=0).sum()) / self.limits.max_members
        of_work_usd = num_batches * float((work_s * usd_per_s[:, None]).min(axis=0).sum())
        of_members_usd = self.num_members * min(bill_usd(offer, run_s) for offer in offers)
        return run_s, max(of_work_usd, of_members_usd)

    def _layers_s(self, offer: Offer) -> Array:
        """The least time of each layer for a batch on one member of an offer."""
        profile = self.market.world.profile_of(offer)
        sizes = grain_sizes(profile)
        return np.array(
            [
                min((layer.forward_s(size) + layer.backward_s(size)) / size for size in sizes) * profile.batch_size
                for layer in profile.layers
            ]
        )

    @cached_property
    def plan(self) -> Plan:
        """One plan, which stands for all as long as none is made: the whole model on the first offer."""
        offer = self.market.offers[0]
        return self.market.plan(
            [(0, len(self.market.profile.layers))], [offer], num_replicas=1, grain_size=1, transport="store"
        )

    @property
    def num_kinds(self) -> int:
        """The number of offers, which its plans mix."""
        return len(self.market.offers)

    @property
    def missing_bytes(self) -> int:
        return 0

    def candidates(self) -> list[Family | Draft]:
        return list(self.make(self.market))


def lots(markets: Sequence[Market], limits: Limits, promise: Promise) -> list[Lot]:
    """Return all plans of these markets as lots: on one offer, on several of one site, and on several sites.

    `promise` returns the sort key of a candidate: those with a smaller one are more promising.
    """
    num_mixed = sum(len(by_site(market.home.offers)) + (len(market.offers) > 1) for market in markets)
    search_s = min(SEARCH_S, MIXED_S / max(1, _NUM_MIXED_GRAINS * num_mixed))
    return [lot for market in markets for lot in _lots_of(market, limits, promise, search_s)]


def _lots_of(market: Market, limits: Limits, promise: Promise, search_s: float) -> list[Lot]:
    home = market.home
    single = {offer.name: home.of([offer]) for offer in home.offers}

    @cache
    def families_on(offer: str) -> list[Family]:
        return list(families(single[offer], limits))

    def sizes(part: Market) -> list[int]:
        every = [family for offer in part.offers if offer.name in single for family in families_on(offer.name)]
        promising = list(dict.fromkeys(family.plan.grain_size for family in sorted(every, key=promise)))
        promising = promising or grain_sizes(part.profile)
        return promising if limits.num_stages else promising[:_NUM_MIXED_GRAINS]

    def alone(part: Market) -> Iterator[Family | Draft]:
        return iter(families_on(part.offers[0].name))

    def mixed(part: Market) -> Iterator[Draft]:
        return (draft(plan, part) for plan in mixed_plans(part, limits, sizes(part), search_s))

    def across(part: Market) -> Iterator[Draft]:
        return (draft(plan, part) for plan in site_plans(part, limits, sizes(part), search_s))

    found = [Lot(own, limits, 1, alone) for own in single.values()]
    if _can_grow(home.offers):
        found.append(Lot(home, limits, 1, lambda part: fitted_replicas(part, limits)))
    if len(market.offers) == 1:
        return found
    if limits.num_replicas is not None:  # combinations of few members, wherever they are
        return [*found, Lot(market, limits, 2, mixed)]
    found += [Lot(home.of(offers), limits, 2, mixed) for offers in by_site(home.offers)]
    for sites in connected_sites(market):
        found.append(Lot(market.of(offer for offer in market.offers if offer.site in sites), limits, 2, across))
    return found


def _can_grow(offers: Iterable[Offer]) -> bool:
    """Whether members get sizes of their own, so that they may be of none of these offers."""
    return any(offer.sized_by for offer in offers)
