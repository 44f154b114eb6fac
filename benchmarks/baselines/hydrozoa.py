"""Hydrozoa's planner (§3.3, §3.4): members alike, and for every number of them the split into replicas and stages, and
the size of a grain, with the least runtime by its model (Algorithm 1).

Strategies are compared with the best cuts there are, which its grid of bounds comes near to; the one that is taken is
then cut by the grid itself. Only that takes long.
"""

import math
from collections.abc import Iterator

import numpy as np
from msgspec import structs

from benchmarks.baselines.hydrozoa_grid import NUM_BOUNDS, grid_partitions
from benchmarks.baselines.lambda_ml import has_work
from benchmarks.baselines.simulated import fits
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.planner import Market
from zooid.planner.families import grain_sizes
from zooid.planner.partition import Partition, StageTable, best_partitions


def hydrozoa(market: Market, max_members: int) -> Iterator[Plan]:
    """What its planner selects, for every size and every number of members."""
    for offer in market.offers:
        cutting = _Cutting(market, offer, max_members)
        by_runtime = sorted(_strategies(cutting), key=lambda each: each[0])
        for num_members in range(1, max_members + 1):
            # as many replicas as so many members allow, with each number of stages
            own = [
                proposal
                for _, proposal in by_runtime
                if proposal.num_replicas == num_members // len(proposal.partition)
            ]
            if selected := next((proposal for proposal in own if fits(proposal, market)), None):
                yield selected


def cut_by_grid(proposal: Plan, market: Market, num_bounds: int = NUM_BOUNDS) -> Plan:
    """The same members with the cuts that the paper's algorithm finds; as it is where these do not fit."""
    num_stages = len(proposal.partition)
    if num_stages == 1:
        return proposal
    table = _table(market, proposal.offers[0], proposal.grain_size, proposal.num_replicas)
    found = grid_partitions(table, num_bounds, max_stages=num_stages)
    stages = tuple(
        structs.replace(stage, first_layer=first, end_layer=end)
        for stage, (first, end) in zip(proposal.stages, found.get(num_stages, proposal.partition), strict=True)
    )
    recut = structs.replace(proposal, stages=stages)
    return recut if fits(recut, market) else proposal


class _Cutting:
    """The best cuts on one offer, each looked for once: they depend on how many grains a replica has, and not on how
    many replicas there are."""

    def __init__(self, market: Market, offer: Offer, max_members: int) -> None:
        self.market, self.offer, self.max_members = market, offer, max_members
        self._known: dict[tuple[int, int], dict[int, list[Partition]]] = {}

    def partition(self, table: StageTable, grain_size: int, num_stages: int) -> Partition | None:
        key = (grain_size, table.num_grains)
        if key not in self._known:
            most = min(self.max_members, table.num_layers)
            self._known[key] = best_partitions(table, range(1, most + 1), max_each=1)
        return next(iter(self._known[key][num_stages]), None)


def _strategies(cutting: _Cutting) -> Iterator[tuple[float, Plan]]:
    """Each with its runtime by the model."""
    market, offer, most = cutting.market, cutting.offer, cutting.max_members
    for grain_size in grain_sizes(market.profile):
        for num_replicas in range(1, most + 1):
            if not has_work(market, num_replicas, grain_size):
                continue
            alone = _table(market, offer, grain_size, num_replicas)
            both = _table(market, offer, grain_size, num_replicas, reduces=True)
            for num_stages in range(1, min(most // num_replicas, alone.num_layers) + 1):
                if partition := cutting.partition(alone, grain_size, num_stages):
                    ends = np.array([end for _, end in partition])
                    proposal = market.plan(
                        partition,
                        (offer,) * num_stages,
                        num_replicas=num_replicas,
                        grain_size=grain_size,
                        schedule="gpipe" if num_stages > 1 else "1f1b",
                        transport="store",
                    )
                    yield float(both.step_s(ends)), proposal


def _table(market: Market, offer: Offer, grain_size: int, num_replicas: int, *, reduces: bool = False) -> StageTable:
    profile = market.world.profile_of(offer)
    num_grains = math.ceil(math.ceil(profile.batch_size / grain_size) / num_replicas)
    links = market.links_of(offer, is_direct=False)
    return StageTable.of_profile(profile, grain_size, num_grains, links, num_replicas if reduces else 1)
