"""The partition with the highest throughput for fixed members, and a grid over the members (TPDMP, FuncPipe §5.1).

In a full pipeline every stage works on another grain, so that the slowest one says how many pass in a second: stage
[i, j) takes max(f + b, c_i + c_j), with c the time that what crosses a cut takes on its link, once forwards and once
backwards. For every size, number of replicas and stages, and grain, the partition whose slowest stage is fastest; of
all these FuncPipe's closed form takes the best, by time and by cost. Neither latency nor what fills a pipeline is seen
where the model is cut.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from msgspec import structs

from benchmarks.baselines.lambda_ml import has_work
from benchmarks.baselines.simulated import closed_form_step_s, fits
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.planner import Market
from zooid.planner.families import grain_sizes, schedules
from zooid.planner.partition import Partition, smallest_need
from zooid.planner.partition.problem import span_sums

NUM_FINALISTS = 8
"""So many are simulated, by time and by cost each: where the closed form is wrong by a little, that is no loss."""


def tpdmp(market: Market, max_members: int) -> Iterator[Plan]:
    """The grid's finalists, in all schedules."""
    every = [(proposal, closed_form_step_s(proposal, market)) for proposal in _grid(market, max_members)]
    by_time = sorted(every, key=lambda each: each[1])
    by_cost = sorted(every, key=lambda each: each[1] * sum(offer.usd_per_hour for offer in each[0].member_offers))
    chosen: dict[Plan, None] = {}
    for ordered in (by_time, by_cost):
        fitting = (proposal for proposal, _ in ordered if fits(proposal, market))
        chosen |= dict.fromkeys(itertools.islice(fitting, NUM_FINALISTS))
    for proposal in chosen:
        for schedule, ahead in schedules(None, len(proposal.stages)):
            yield structs.replace(proposal, schedule=schedule, ahead=ahead)


def _grid(market: Market, max_members: int) -> Iterator[Plan]:
    for offer, grain_size in itertools.product(market.offers, grain_sizes(market.profile)):
        for num_stages in range(1, min(max_members, len(market.profile.layers)) + 1):
            partition = fastest_flow(market, offer, grain_size, num_stages)
            for num_replicas in range(1, max_members // num_stages + 1):
                if has_work(market, num_replicas, grain_size):
                    yield market.plan(
                        partition,
                        (offer,) * num_stages,
                        num_replicas=num_replicas,
                        grain_size=grain_size,
                        schedule="1f1b",  # which needs the least memory
                        transport="store",
                    )


def fastest_flow(market: Market, offer: Offer, grain_size: int, num_stages: int) -> Partition:
    """Of all partitions into so many stages, the one whose slowest stage is the fastest."""
    layers = market.world.profile_of(offer).layers
    rate = min((link.bytes_per_s for link in market.links_of(offer, is_direct=False)), default=math.inf)
    times_s = span_sums([layer.forward_s(grain_size) + layer.backward_s(grain_size) for layer in layers])
    crossing_s = np.array([0.0, *(layer.boundary.at(grain_size) / rate for layer in layers[:-1]), 0.0])
    return smallest_need(np.maximum(times_s, crossing_s[:, None] + crossing_s), num_stages)
