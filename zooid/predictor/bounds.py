"""What no schedule and no order of messages can beat: from times and bytes alone, with every overlap free.

With f, b the times of a stage for one grain, x the time of a message over the cut behind it (twice, through a store,
where a message is down only after it was up), M grains, r the time that reducing its gradients needs at least and u
that of its update:

    stage s is busy from Σ (f + x) over the stages before it at the earliest, for M (f + b); what it computed last then
    has to get down to stage j by Σ (b + x), so that stage j's last backward ends at E(j) at the earliest, over all
    s ≥ j; a reduce can overlap that backward, so that j is prepared at P(j) = max(E(j), E(j) − b + r); it updates when
    it has heard so from all others: max(P(j), P(i) + v) + u, with v the latency of a message;
    no link carries its bytes in less than their time, and no machine computes faster than its cores.
"""

import math
from collections.abc import Sequence

from zooid.core.link import STORE_SITE
from zooid.core.stage import StageTimes
from zooid.predictor.layout import Layout, Ways


def lower_bound_s(layout: Layout, grains: Sequence[int]) -> float:
    """Of a step in which the replicas work on so many grains each."""
    layout = layout.of_replicas(len(grains))
    bound_s = 0.0
    computed_s = 0.0
    prepared: list[tuple[float, float]] = []
    for stages, sites, num_grains in zip(layout.stages, layout.sites, grains, strict=True):
        carried_s, own = _replica_s(layout, stages, sites, num_grains, len(grains))
        bound_s = max(bound_s, carried_s)
        prepared += own
        computed_s += sum(num_grains * (own.forward_s + own.backward_s) + own.update_s for own in stages)
    bound_s = max(bound_s, _voted_s(prepared, least_latency_s(layout)))
    return max(bound_s, computed_s / layout.host_cores) if layout.host_cores else bound_s


def _voted_s(prepared: Sequence[tuple[float, float]], latency_s: float) -> float:
    """When everybody has updated: each member is prepared at a moment, and its update takes so long."""
    last = sorted((moment_s for moment_s, _ in prepared), reverse=True)
    bound_s = 0.0
    for moment_s, update_s in prepared:
        others_s = last[0] if moment_s < last[0] or last.count(last[0]) > 1 else (last[1:] or [-latency_s])[0]
        bound_s = max(bound_s, max(moment_s, others_s + latency_s) + update_s)
    return bound_s


def _replica_s(
    layout: Layout, stages: Sequence[StageTimes], sites: Sequence[str], num_grains: int, num_replicas: int
) -> tuple[float, list[tuple[float, float]]]:
    """What its links carry takes so long, and its members are prepared at these moments and update so long."""
    crossing = [
        _message_s(layout, own.out_bytes, *sites[at : at + 2]) if at + 1 < len(stages) else 0.0
        for at, own in enumerate(stages)
    ]
    ends_s = [0.0] * len(stages)
    bound_s = 0.0
    for at, own in enumerate(stages):
        if num_grains:
            head_s = sum(stages[i].forward_s + crossing[i] for i in range(at))
            done_s = head_s + num_grains * (own.forward_s + own.backward_s)
            ends_s[at] = max(ends_s[at], done_s)
            for below in range(at - 1, -1, -1):
                done_s += crossing[below] + stages[below].backward_s
                ends_s[below] = max(ends_s[below], done_s)
        taken = num_grains * (own.out_bytes if at + 1 < len(stages) else 0.0)
        taken += num_grains * (stages[at - 1].out_bytes if at else 0.0)
        taken += _reduced_bytes(layout, own, num_replicas)
        bound_s = max(bound_s, taken / downlink(layout.ways, sites[at]))
    prepared = []
    for own, site, end_s in zip(stages, sites, ends_s, strict=True):
        reduced = _reduced_bytes(layout, own, num_replicas)
        reduce_s = reduced / downlink(layout.ways, site) + (least_latency_s(layout) if reduced else 0.0)
        begin_s = max(0.0, end_s - own.backward_s)
        prepared.append((max(end_s, begin_s + reduce_s), own.update_s))
    return bound_s, prepared


def least_latency_s(layout: Layout) -> float:
    """What the shortest message between any two takes, however small: half a round trip, or a put and a get."""
    if layout.library is not None:
        return 0.0
    sites = {site for row in layout.sites for site in row}
    if layout.is_direct:
        return min((way.rtt_s for ends, way in layout.ways.items() if set(ends) <= sites), default=0.0) / 2
    there = min(layout.ways[site, STORE_SITE].rtt_s for site in sites)
    return there + min(layout.ways[STORE_SITE, site].rtt_s for site in sites)


def _message_s(layout: Layout, num_bytes: float, site: str, next_site: str) -> float:
    """One message one way, alone on its way."""
    if num_bytes == 0:
        return 0.0
    if layout.is_direct:
        way = layout.ways[site, next_site]
        return way.rtt_s / 2 + num_bytes / way.bytes_per_s
    up, down = layout.ways[site, STORE_SITE], layout.ways[STORE_SITE, next_site]
    return up.rtt_s + num_bytes / up.bytes_per_s + down.rtt_s + num_bytes / down.bytes_per_s


def _reduced_bytes(layout: Layout, own: StageTimes, num_replicas: int) -> float:
    """2s(n−1)/n down every member's link, by the best of our algorithms; what a library moves, nobody knows."""
    if layout.library is not None:
        return 0.0
    return 2 * (num_replicas - 1) / num_replicas * sum(bucket.num_bytes for bucket in own.buckets)


def downlink(ways: Ways, site: str) -> float:
    """What a member takes in at most, wherever it comes from."""
    return max((way.bytes_per_s for ends, way in ways.items() if ends[1] == site), default=math.inf)
