"""Lower bounds of a step, which no schedule and no order of messages can beat: times and bytes, with perfect overlap.

f and b are the forward and backward time of a stage for one grain, x is the time of a message over the cut behind it
(through a store, first up and then down), M is the number of grains, and u the time of the stage's update.

    Stage s starts after Σ (f + x) over the stages before it, and computes for M (f + b). Its last result then returns
    to stage j in Σ (b + x). The last backward of stage j ends at E(j) at the earliest, the latest of this over s ≥ j.
    Reducing a bucket and those after it starts when the bucket is ready, a part of b before E(j). So stage j is
    prepared at P(j), the latest of this over its buckets. It updates once it knows that all others i are prepared:
    max(P(j), P(i) + v) + u, where v is the latency of a message.
    No link moves its bytes faster than its rate, and no machine computes faster than its cores.

If stage s keeps the activations of at most w(s) grains, as its schedule says, more is certain:

    A grain returns to s after R(s) = Σ (f + b + 2x) over s and the stages behind it, without the last x. The next grain
    but w(s) starts after it. So s ends grain q w + r at (q + 1) R(s) + r b(s) at the earliest.
    A last stage that keeps all M grains receives them all, Σ (f + x) + (M − 1) max f, before its first backward.
"""

import math
from collections.abc import Sequence

from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.resources.link import STORE_SITE
from zooid.predictor.simulation.layout import DirectedLink, DirectedLinks, Layout


def lower_bound_s(layout: Layout, grains: Sequence[int], kept: Sequence[int] | None = None) -> float:
    """Lower bound of a step, given the grains of each replica, and the most grains that each stage keeps, if known."""
    layout = layout.of_replicas(len(grains))
    bound_s = 0.0
    computed_s = 0.0
    ends_s: list[list[float]] = []
    for stages, sites, num_grains in zip(layout.stages, layout.sites, grains, strict=True):
        links_s, replica_ends_s = _replica_s(layout, stages, sites, num_grains, len(grains), kept)
        bound_s = max(bound_s, links_s)
        ends_s.append(replica_ends_s)
        computed_s += sum(num_grains * (stage.forward_s + stage.backward_s) + stage.update_s for stage in stages)
    bound_s = max(bound_s, _voted_s(_prepared(layout, ends_s), least_latency_s(layout)))
    return max(bound_s, computed_s / layout.host_cores) if layout.host_cores else bound_s


def _voted_s(prepared: Sequence[tuple[float, float]], latency_s: float) -> float:
    """Time at which all members have updated, given the time at which each is prepared, and its update time."""
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
    """Lower bounds of the time that a replica's links need, and of the ends of its stages' last backwards."""
    crossing = [
        message_s(stage.out_bytes, _links_between(layout, *sites[index : index + 2]))
        if index + 1 < len(stages)
        else 0.0
        for index, stage in enumerate(stages)
    ]
    ends_s = [0.0] * len(stages)
    bound_s = 0.0
    for index, stage in enumerate(stages):
        if num_grains:
            begin_s = sum(stages[before].forward_s + crossing[before] for before in range(index))
            end_s = begin_s + num_grains * (stage.forward_s + stage.backward_s)
            if kept is not None:
                end_s = max(end_s, begin_s + _returned_s(stages[index:], crossing[index:], num_grains, kept[index]))
            ends_s[index] = max(ends_s[index], end_s)
            for before in range(index - 1, -1, -1):
                end_s += crossing[before] + stages[before].backward_s
                ends_s[before] = max(ends_s[before], end_s)
        received = num_grains * (stage.out_bytes if index + 1 < len(stages) else 0.0)
        received += num_grains * (stages[index - 1].out_bytes if index else 0.0)
        if layout.library is None:  # nobody knows how many bytes a library moves
            received += reduced_fraction(num_replicas) * sum(bucket.num_bytes for bucket in stage.buckets)
        bound_s = max(bound_s, received / downlink(layout.links, sites[index]))
    if kept is not None and 1 < num_grains <= kept[-1]:
        ends_s = list(map(max, ends_s, _all_forward_first_s(stages, crossing, num_grains)))
    return bound_s, ends_s


def _prepared(layout: Layout, ends_s: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Time at which each member has reduced its gradients, with its update time, from the ends of last backwards.

    Reducing a bucket and those after it starts when the first replica has the bucket, a part of b before the end.
    """
    num_replicas = len(ends_s)
    latency_s = least_latency_s(layout)
    prepared = []
    for replica, (stages, sites) in enumerate(zip(layout.stages, layout.sites, strict=True)):
        prepared_s = []
        for index, stage in enumerate(stages):
            reduced_s = left_bytes = 0.0
            for bucket in reversed(stage.buckets if num_replicas > 1 and layout.library is None else ()):
                left_bytes += reduced_fraction(num_replicas) * bucket.num_bytes
                if left_bytes == 0:
                    continue
                begin_s = min(
                    replica_ends_s[index] - replica_stages[index].backward_s * (1 - bucket.at_share)
                    for replica_ends_s, replica_stages in zip(ends_s, layout.stages, strict=True)
                )
                reduced_s = max(reduced_s, begin_s + latency_s + left_bytes / downlink(layout.links, sites[index]))
            prepared_s.append(max(ends_s[replica][index], reduced_s))
        for tie in layout.ties if layout.library is None else ():
            prepared_s = _tied_s(layout, tie, prepared_s, sites, latency_s)
        prepared += [(moment_s, stage.update_s) for moment_s, stage in zip(prepared_s, stages, strict=True)]
    return prepared


def _tied_s(
    layout: Layout, tie: Tie, reduced_s: Sequence[float], sites: Sequence[str], latency_s: float
) -> list[float]:
    """Time at which each stage has summed tied gradients, from the times at which stages have reduced their own.

    A stage hears from the last of the others, and receives as many bytes as in any all-reduce from the first on.
    """
    summed_s = list(reduced_s)
    for stage in tie.stages:
        others_s = [reduced_s[other] for other in tie.stages if other != stage]
        received_s = reduced_fraction(len(tie.stages)) * tie.num_bytes / downlink(layout.links, sites[stage])
        summed_s[stage] = max(reduced_s[stage], max(others_s) + latency_s, min(others_s) + latency_s + received_s)
    return summed_s


def _returned_s(stages: Sequence[StageTimes], crossing: Sequence[float], num_grains: int, kept: int) -> float:
    """Time from the first grain's arrival at the first of these stages until its last grain has returned."""
    round_s = sum(stage.forward_s + stage.backward_s for stage in stages) + 2 * sum(crossing)
    rounds, rest = divmod(num_grains - 1, kept)
    return (rounds + 1) * round_s + rest * stages[0].backward_s


def _all_forward_first_s(stages: Sequence[StageTimes], crossing: Sequence[float], num_grains: int) -> list[float]:
    """End of each stage's last backward, if all forwards come before the first backward."""
    others, forwards_s = num_grains - 1, [stage.forward_s for stage in stages]
    turn_s = sum(forwards_s) + sum(crossing) + others * max(forwards_s)
    ends_s = []
    slowest_s = 0.0
    for stage, crossing_s in zip(reversed(stages), reversed(crossing), strict=True):
        slowest_s = max(slowest_s, stage.backward_s)
        turn_s += crossing_s + stage.backward_s
        ends_s.append(turn_s + others * slowest_s)
    return ends_s[::-1]


def least_latency_s(layout: Layout) -> float:
    """Latency of the fastest message between any two members: half a round trip, or a put and a get."""
    if layout.library is not None:
        return 0.0
    sites = {site for row in layout.sites for site in row}
    if layout.is_direct:
        return min((latency_s([link]) for ends, link in layout.links.items() if set(ends) <= sites), default=0.0)
    there = min(layout.links[site, STORE_SITE].rtt_s for site in sites)
    return there + min(layout.links[STORE_SITE, site].rtt_s for site in sites)


def latency_s(links: Sequence[DirectedLink]) -> float:
    """Latency of a message over the link between two members, or over the links to the store and from it.

    A message reaches a connected member that waits for it after half a round trip. A put and a get take a whole round
    trip each, since both are answered.
    """
    return sum(link.rtt_s for link in links) * (0.5 if len(links) == 1 else 1.0)


def message_s(num_bytes: float, links: Sequence[DirectedLink]) -> float:
    """Time of one message over these links, as in `latency_s`, if nothing else is in flight."""
    return latency_s(links) + sum(num_bytes / link.bytes_per_s for link in links) if num_bytes else 0.0


def _links_between(layout: Layout, site: str, next_site: str) -> list[DirectedLink]:
    ends = [(site, next_site)] if layout.is_direct else [(site, STORE_SITE), (STORE_SITE, next_site)]
    return [layout.links[end] for end in ends]


def reduced_fraction(num_members: int) -> float:
    """Bytes that every member receives in the best all-reduce, as a fraction of the bytes reduced."""
    return 2 * (num_members - 1) / num_members


def downlink(links: DirectedLinks, site: str) -> float:
    """The highest rate at which a member at this site receives, from any sender."""
    return max((link.bytes_per_s for ends, link in links.items() if ends[1] == site), default=math.inf)
