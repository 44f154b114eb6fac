"""What members measure together, as data: who moves bytes to whom at the same time, and what links follow from it."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from zooid.core.resources.link import STORE_SITE, Link

STORE = -1
"""The store's place in a flow, where members have their ranks."""
_FULL_SHARE = 0.95
"""A stream that carries so much of what several carry fills the link by itself."""


class Flow(NamedTuple):
    """Bytes from one end to another."""

    source: int
    target: int


Kind: TypeAlias = Literal["bandwidth", "round_trip"]
Crowd: TypeAlias = tuple[Flow, ...]
"""Flows at the same time."""


@dataclass(frozen=True)
class Round:
    """One measurement, by all of a crowd at the same time."""

    kind: Kind
    flows: Crowd
    num_streams: int = 1

    @property
    def is_with_store(self) -> bool:
        return any(STORE in flow for flow in self.flows)


class Place(NamedTuple):
    """Which flow of which round a value belongs to."""

    round_number: int
    flow_number: int


Samples: TypeAlias = Mapping[Place, Sequence[float]]
"""Bytes per second, or seconds, one for each repeat."""


def crowd_sizes(num_members: int) -> list[int]:
    """How many members at once: doubling, up to all of them.

    >>> crowd_sizes(6)
    [1, 2, 4, 6]
    """
    doubling = [2**power for power in range(num_members.bit_length())]
    return sorted({*doubling, num_members})


def store_rounds(sites: Sequence[str], num_streams: Sequence[int]) -> list[Round]:
    """Up to the store and down from it: one member of each site alone, then growing numbers of members."""
    alone = [(sites.index(site),) for site in dict.fromkeys(sites)]
    together = [tuple(range(size)) for size in crowd_sizes(len(sites)) if size > 1]
    rounds = []
    for ranks in (*alone, *together):
        up = tuple(Flow(rank, STORE) for rank in ranks)
        down = tuple(Flow(STORE, rank) for rank in ranks)
        rounds += [Round("round_trip", up), Round("round_trip", down)]
        rounds += [Round("bandwidth", crowd, streams) for streams in num_streams for crowd in (up, down)]
    return rounds


def peer_crowds(sites: Sequence[str]) -> list[Crowd]:
    """Between members: the first pair of each two sites, each way by itself, then rings of growing numbers."""
    pairs: dict[frozenset[str], tuple[int, int]] = {}
    for one in range(len(sites)):
        for other in range(one + 1, len(sites)):
            pairs.setdefault(frozenset((sites[one], sites[other])), (one, other))
    single: list[Crowd] = [(flow,) for one, other in pairs.values() for flow in (Flow(one, other), Flow(other, one))]
    rings: list[Crowd] = [
        tuple(Flow(rank, (rank + 1) % size) for rank in range(size)) for size in crowd_sizes(len(sites)) if size > 1
    ]
    return single + rings


def peer_rounds(
    sites: Sequence[str], num_streams: Sequence[int], is_joined: Callable[[Flow], bool]
) -> tuple[list[Round], list[Flow]]:
    """The rounds of all crowds whose members reach each other, and the flows that are missing for the others."""
    rounds: list[Round] = []
    missing: dict[Flow, None] = {}
    for crowd in peer_crowds(sites):
        lacking = [flow for flow in crowd if not is_joined(flow)]
        missing.update(dict.fromkeys(lacking))
        if not lacking:
            rounds.append(Round("round_trip", crowd))
            rounds += [Round("bandwidth", crowd, streams) for streams in num_streams]
    return rounds, list(missing)


def site_of(sites: Sequence[str], end: int) -> str:
    return STORE_SITE if end == STORE else sites[end]


def links_from(
    rounds: Sequence[Round], samples: Samples, sites: Sequence[str], *, store_source: str, peer_source: str, date: str
) -> tuple[Link, ...]:
    """One link for each two sites, number of members and number of streams: the median of all that was measured.

    Members of one site are alike, so that what each of them measured counts the same.
    """
    round_trips: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    bandwidths: defaultdict[tuple[str, str, int], defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for round_number, each in enumerate(rounds):
        for flow_number, (source, target) in enumerate(each.flows):
            ends = (site_of(sites, source), site_of(sites, target), len(each.flows))
            values = samples[Place(round_number, flow_number)]
            (bandwidths[ends][each.num_streams] if each.kind == "bandwidth" else round_trips[ends]).extend(values)
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
    """Largest less smallest, over the median.

    >>> spread([9.0, 10.0, 11.0])
    0.2
    """
    return (max(values) - min(values)) / statistics.median(values)


def _single_stream(medians: Mapping[int, float]) -> float | None:
    """What one stream carries, where that is known and less than several carry."""
    single = medians.get(1)
    return single if single is not None and single < _FULL_SHARE * max(medians.values()) else None
