"""What no schedule and no order of messages can beat: from times and bytes alone, with every overlap free.

With f, b the times of a stage for one grain, x the time of a message over the cut behind it (twice, through a store,
where a message is down only after it was up), M grains and u the time of its update:

    stage s is busy from Σ (f + x) over the stages before it at the earliest, for M (f + b); what it computed last then
    has to get down to stage j by Σ (b + x), so that stage j's last backward ends at E(j) at the earliest, over all
    s ≥ j; what a bucket of gradients and those after it take begins when the bucket is there, a part of b before E(j),
    so that j is prepared at P(j), the latest of that; it updates when it has heard so from all others:
    max(P(j), P(i) + v) + u, with v the latency of a message;
    no link carries its bytes in less than their time, and no machine computes faster than its cores.

Where it is known that stage s keeps what it computed of w(s) grains at most, as its schedule has it, more is certain:

    a grain is back at s after R(s) = Σ (f + b + 2x) over s and the stages behind it, without the last x, and w(s)
    grains later the next one follows it: s ends with grain q w + r at (q + 1) R(s) + r b(s) at the earliest;
    a last stage that keeps all M grains has them all, Σ (f + x) + (M − 1) max f, before the first goes back.
"""

import math
from collections.abc import Sequence

from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.resources.link import STORE_SITE
from zooid.predictor.simulation.layout import DirectedLink, DirectedLinks, Layout


def lower_bound_s(layout: Layout, grains: Sequence[int], kept: Sequence[int] | None = None) -> float:
    """Of a step in which the replicas work on so many grains each, and stages keep so many of them at most."""
    layout = layout.of_replicas(len(grains))
    bound_s = 0.0
    computed_s = 0.0
    ends_s: list[list[float]] = []
    for stages, sites, num_grains in zip(layout.stages, layout.sites, grains, strict=True):
        carried_s, own_s = _replica_s(layout, stages, sites, num_grains, len(grains), kept)
        bound_s = max(bound_s, carried_s)
        ends_s.append(own_s)
        computed_s += sum(num_grains * (own.forward_s + own.backward_s) + own.update_s for own in stages)
    bound_s = max(bound_s, _voted_s(_prepared(layout, ends_s), least_latency_s(layout)))
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
    layout: Layout,
    stages: Sequence[StageTimes],
    sites: Sequence[str],
    num_grains: int,
    num_replicas: int,
    kept: Sequence[int] | None,
) -> tuple[float, list[float]]:
    """What its links carry takes so long, and its members' last backwards end at these moments."""
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
            if kept is not None:
                done_s = max(done_s, head_s + _returned_s(stages[at:], crossing[at:], num_grains, kept[at]))
            ends_s[at] = max(ends_s[at], done_s)
            for below in range(at - 1, -1, -1):
                done_s += crossing[below] + stages[below].backward_s
                ends_s[below] = max(ends_s[below], done_s)
        taken = num_grains * (own.out_bytes if at + 1 < len(stages) else 0.0)
        taken += num_grains * (stages[at - 1].out_bytes if at else 0.0)
        taken += _reduced_bytes(layout, own, num_replicas)
        bound_s = max(bound_s, taken / downlink(layout.links, sites[at]))
    if kept is not None and 1 < num_grains <= kept[-1]:
        ends_s = list(map(max, ends_s, _all_forward_first_s(stages, crossing, num_grains)))
    return bound_s, ends_s


def _prepared(layout: Layout, ends_s: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """When every member has reduced, and how long it then updates; by when the replicas' last backwards end.

    What a bucket and those after it take begins when the first replica has it, which is a share of its backward before
    the end.
    """
    num_replicas = len(ends_s)
    latency_s = least_latency_s(layout)
    prepared = []
    for replica, (stages, sites) in enumerate(zip(layout.stages, layout.sites, strict=True)):
        moments_s = []
        for at, own in enumerate(stages):
            reduced_s = left_bytes = 0.0
            for bucket in reversed(own.buckets if num_replicas > 1 and layout.library is None else ()):
                left_bytes += reduced_share(num_replicas) * bucket.num_bytes
                if left_bytes == 0:
                    continue
                begin_s = min(
                    row[at] - other[at].backward_s * (1 - bucket.at_share)
                    for row, other in zip(ends_s, layout.stages, strict=True)
                )
                reduced_s = max(reduced_s, begin_s + latency_s + left_bytes / downlink(layout.links, sites[at]))
            moments_s.append(max(ends_s[replica][at], reduced_s))
        for tie in layout.ties if layout.library is None else ():
            moments_s = _shared_s(layout, tie, moments_s, sites, latency_s)
        prepared += [(moment_s, own.update_s) for moment_s, own in zip(moments_s, stages, strict=True)]
    return prepared


def _shared_s(
    layout: Layout, tie: Tie, moments_s: Sequence[float], sites: Sequence[str], latency_s: float
) -> list[float]:
    """When stages that have reduced at these moments have summed what some of them share: each hears from the last of
    the others, and takes in from them, when the first of them begins, as much as in any all-reduce."""
    shared_s = list(moments_s)
    for at in tie.stages:
        rate = downlink(layout.links, sites[at])
        last_s = max(moments_s[other] for other in tie.stages if other != at)
        first_s = min(moments_s[other] for other in tie.stages if other != at)
        taken_s = reduced_share(len(tie.stages)) * tie.num_bytes / rate
        shared_s[at] = max(moments_s[at], last_s + latency_s, first_s + latency_s + taken_s)
    return shared_s


def _returned_s(stages: Sequence[StageTimes], crossing: Sequence[float], num_grains: int, kept: int) -> float:
    """When the first of these stages has its last grain back, from when it gets its first one on."""
    round_s = sum(own.forward_s + own.backward_s for own in stages) + 2 * sum(crossing)
    rounds, rest = divmod(num_grains - 1, kept)
    return (rounds + 1) * round_s + rest * stages[0].backward_s


def _all_forward_first_s(stages: Sequence[StageTimes], crossing: Sequence[float], num_grains: int) -> list[float]:
    """When each stage's last backward ends, where the first one of all begins after the last forward."""
    others = num_grains - 1
    turn_s = sum(own.forward_s for own in stages) + sum(crossing) + others * max(own.forward_s for own in stages)
    ends_s = []
    slowest_s = 0.0
    for own, crossing_s in zip(reversed(stages), reversed(crossing), strict=True):
        slowest_s = max(slowest_s, own.backward_s)
        turn_s += crossing_s + own.backward_s
        ends_s.append(turn_s + others * slowest_s)
    return ends_s[::-1]


def least_latency_s(layout: Layout) -> float:
    """What the shortest message between any two takes, however small: half a round trip, or a put and a get."""
    if layout.library is not None:
        return 0.0
    sites = {site for row in layout.sites for site in row}
    if layout.is_direct:
        return min((latency_s([link]) for ends, link in layout.links.items() if set(ends) <= sites), default=0.0)
    there = min(layout.links[site, STORE_SITE].rtt_s for site in sites)
    return there + min(layout.links[STORE_SITE, site].rtt_s for site in sites)


def latency_s(links: Sequence[DirectedLink]) -> float:
    """Of a message, however small, over the one way between two members, or over those to the store and from it."""
    return sum(link.rtt_s for link in links) * (0.5 if len(links) == 1 else 1.0)


def _message_s(layout: Layout, num_bytes: float, site: str, next_site: str) -> float:
    """One message one way, alone on its way."""
    if num_bytes == 0:
        return 0.0
    if layout.is_direct:
        link = layout.links[site, next_site]
        return link.rtt_s / 2 + num_bytes / link.bytes_per_s
    up, down = layout.links[site, STORE_SITE], layout.links[STORE_SITE, next_site]
    return up.rtt_s + num_bytes / up.bytes_per_s + down.rtt_s + num_bytes / down.bytes_per_s


def _reduced_bytes(layout: Layout, own: StageTimes, num_replicas: int) -> float:
    """Down every member's link; what a library moves, nobody knows."""
    if layout.library is not None:
        return 0.0
    return reduced_share(num_replicas) * sum(bucket.num_bytes for bucket in own.buckets)


def reduced_share(num_members: int) -> float:
    """What every member takes in of an all-reduce by the best of our algorithms, as a part of its bytes."""
    return 2 * (num_members - 1) / num_members


def downlink(links: DirectedLinks, site: str) -> float:
    """What a member takes in at most, wherever it comes from."""
    return max((link.bytes_per_s for ends, link in links.items() if ends[1] == site), default=math.inf)
