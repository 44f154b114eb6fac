"""What no schedule and no order of messages can beat: from times and bytes alone, with every overlap free.

With f, b the times of a stage for one grain, x the time of a message over the cut behind it (twice, through a store,
where a message is down only after it was up), M grains, r the time that reducing its gradients needs at least and u
that of its update:

    stage s is busy from Σ (f + x) over the stages before it at the earliest, for M (f + b); what it computed last then
    has to get down to stage j by Σ (b + x), so that stage j's last backward ends at E(j) at the earliest, over all
    s ≥ j; a reduce can overlap that backward, but an update comes after it: max(E(j), E(j) − b + r) + u;
    no link carries its bytes in less than their time, and no machine computes faster than its cores.
"""

from collections.abc import Sequence

from zooid.core.link import STORE_SITE
from zooid.core.stage import StageTimes
from zooid.predictor.layout import Layout


def lower_bound_s(layout: Layout, grains: Sequence[int]) -> float:
    """Of a step in which the replicas work on so many grains each."""
    layout = layout.of_replicas(len(grains))
    bound_s = 0.0
    computed_s = 0.0
    for stages, sites, num_grains in zip(layout.stages, layout.sites, grains, strict=True):
        bound_s = max(bound_s, _replica_s(layout, stages, sites, num_grains, len(grains)))
        computed_s += sum(num_grains * (own.forward_s + own.backward_s) + own.update_s for own in stages)
    return max(bound_s, computed_s / layout.host_cores) if layout.host_cores else bound_s


def _replica_s(
    layout: Layout, stages: Sequence[StageTimes], sites: Sequence[str], num_grains: int, num_replicas: int
) -> float:
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
        bound_s = max(bound_s, taken / _downlink(layout, sites[at]))
    for own, site, end_s in zip(stages, sites, ends_s, strict=True):
        reduce_s = _reduced_bytes(layout, own, num_replicas) / _downlink(layout, site)
        begin_s = max(0.0, end_s - own.backward_s)
        bound_s = max(bound_s, max(end_s, begin_s + reduce_s) + own.update_s)
    return bound_s


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


def _downlink(layout: Layout, site: str) -> float:
    """What a member takes in at most, wherever it comes from."""
    return max(way.bytes_per_s for ends, way in layout.ways.items() if ends[1] == site)
