"""The rounds of a probe as data: which flows are measured at the same time, and the links that follow from them."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from zooid.core.resources.link import STORE_SITE, Link

STORE = -1
"""Stands for the store in a flow, where a member has its rank."""
_SATURATED_FRACTION = 0.95
"""A single stream that reaches this fraction of the bandwidth of several streams fills the link by itself."""


class ProbeFlow(NamedTuple):
    """Bytes that move from one end to the other; an end is a rank or STORE."""

    source: int
    target: int


Kind: TypeAlias = Literal["bandwidth", "round_trip"]
Crowd: TypeAlias = tuple[ProbeFlow, ...]
"""Flows that are measured at the same time."""


@dataclass(frozen=True)
class ProbeRound:
    """One measurement of all flows of a crowd at the same time."""

    kind: Kind
    flows: Crowd
    num_streams: int = 1

    @property
    def is_with_store(self) -> bool:
        return any(STORE in flow for flow in self.flows)


class FlowIndex(NamedTuple):
    """The round and the flow that a measured value belongs to."""

    round_number: int
    flow_number: int


Samples: TypeAlias = Mapping[FlowIndex, Sequence[float]]
"""Bytes per second, or seconds for round trips, with one value for each repeat."""


def crowd_sizes(num_members: int) -> list[int]:
    """Return how many members measure at once: doubling numbers, up to all members.

    >>> crowd_sizes(6)
    [1, 2, 4, 6]
    """
    doubling = [2**power for power in range(num_members.bit_length())]
    return sorted({*doubling, num_members})


def store_rounds(sites: Sequence[str], num_streams: Sequence[int]) -> list[ProbeRound]:
    """Return the rounds to and from the store: one member of each site alone, then growing numbers of members."""
    alone = [(sites.index(site),) for site in dict.fromkeys(sites)]
    together = [tuple(range(size)) for size in crowd_sizes(len(sites)) if size > 1]
    rounds = []
    for ranks in (*alone, *together):
        up = tuple(ProbeFlow(rank, STORE) for rank in ranks)
        down = tuple(ProbeFlow(STORE, rank) for rank in ranks)
        rounds += [ProbeRound("round_trip", up), ProbeRound("round_trip", down)]
        rounds += [ProbeRound("bandwidth", crowd, streams) for streams in num_streams for crowd in (up, down)]
    return rounds


def peer_crowds(sites: Sequence[str]) -> list[Crowd]:
    """Return the crowds of peers: the first pair of each two sites, in each direction alone, then growing rings."""
    pairs: dict[frozenset[str], tuple[int, int]] = {}
    for first in range(len(sites)):
        for second in range(first + 1, len(sites)):
            pairs.setdefault(frozenset((sites[first], sites[second])), (first, second))
    single: list[Crowd] = [
        (flow,) for first, second in pairs.values() for flow in (ProbeFlow(first, second), ProbeFlow(second, first))
    ]
    rings: list[Crowd] = [
        tuple(ProbeFlow(rank, (rank + 1) % size) for rank in range(size))
        for size in crowd_sizes(len(sites))
        if size > 1
    ]
    return single + rings


def peer_rounds(
    sites: Sequence[str], num_streams: Sequence[int], is_joined: Callable[[ProbeFlow], bool]
) -> tuple[list[ProbeRound], list[ProbeFlow]]:
    """Return the rounds of all crowds whose members can connect, and the missing flows of the other crowds."""
    rounds: list[ProbeRound] = []
    missing: dict[ProbeFlow, None] = {}
    for crowd in peer_crowds(sites):
        unconnected = [flow for flow in crowd if not is_joined(flow)]
        missing.update(dict.fromkeys(unconnected))
        if not unconnected:
            rounds.append(ProbeRound("round_trip", crowd))
            rounds += [ProbeRound("bandwidth", crowd, streams) for streams in num_streams]
    return rounds, list(missing)


def site_of(sites: Sequence[str], end: int) -> str:
    return STORE_SITE if end == STORE else sites[end]


def links_from(
    rounds: Sequence[ProbeRound],
    samples: Samples,
    sites: Sequence[str],
    *,
    store_source: str,
    peer_source: str,
    date: str,
) -> tuple[Link, ...]:
    """Return one link for each two sites, number of members and number of streams, with the median of all values.

    Members of one site are alike, so that the values of each member count the same.
    """
    round_trips: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    bandwidths: defaultdict[tuple[str, str, int], defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for round_number, probe_round in enumerate(rounds):
        for flow_number, (source, target) in enumerate(probe_round.flows):
            ends = (site_of(sites, source), site_of(sites, target), len(probe_round.flows))
            is_bandwidth = probe_round.kind == "bandwidth"
            values = bandwidths[ends][probe_round.num_streams] if is_bandwidth else round_trips[ends]
            values.extend(samples[FlowIndex(round_number, flow_number)])
    links = []
    for ends, by_streams in bandwidths.items():
        from_site, to_site, num_members = ends
        medians = {num_streams: statistics.median(values) for num_streams, values in by_streams.items()}
        for num_streams, values in by_streams.items():
            links.append(
                Link(
                    from_site=from_site,
                    to_site=to_site,
                    bandwidth_bytes_per_s=medians[num_streams],
                    rtt_s=statistics.median(round_trips[ends]),
                    stream_bytes_per_s=_single_stream(medians),
                    num_members=num_members,
                    num_streams=num_streams,
                    spread=spread(values),
                    source=store_source if STORE_SITE in (from_site, to_site) else peer_source,
                    date=date,
                )
            )
    return tuple(links)


def spread(values: Sequence[float]) -> float:
    """Return the difference between the largest and the smallest value, as a fraction of the median.

    >>> spread([9.0, 10.0, 11.0])
    0.2
    """
    return (max(values) - min(values)) / statistics.median(values)


def _single_stream(medians: Mapping[int, float]) -> float | None:
    """Return the bandwidth of one stream where it is known and does not fill the link; otherwise None."""
    single = medians.get(1)
    return single if single is not None and single < _SATURATED_FRACTION * max(medians.values()) else None
