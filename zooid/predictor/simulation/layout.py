"""What a step's lists run on: what every member takes for a grain, where it stands, and the ways between."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zooid.core.errors import PlanError
from zooid.core.plans.plan import AllReduceName, TransportName
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.resources.link import STORE_SITE, Link

Looks = Literal["at_once", "folder", "store"]
"""When a reader finds what lies in the store: at once, as the papers' equations have it; at its next look, which in a
folder of the same machine costs nothing; or which costs a request, so that members learn when to look."""

AllReduceTime = Callable[[int, int], float]
"""(bytes, members) -> seconds."""

_FALLEN = 0.9
"""What a member gets has fallen with their number when it is less than this part of what one alone gets,"""
_RISEN = 1.5
"""and a round trip has risen when it is more than so many of that of one alone."""


@dataclass(frozen=True)
class Way:
    """One direction between two sites, or between a site and the store."""

    bytes_per_s: float
    """What one member gets at most."""
    rtt_s: float
    stream_bytes_per_s: float = math.inf
    total_bytes_per_s: float = math.inf
    """What all members on it get together."""
    total_requests_per_s: float = math.inf
    """How many messages the other end answers, if it is a store."""
    cpu_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    spread: float = 0.0


Ways = Mapping[tuple[str, str], Way]


@dataclass(frozen=True)
class Layout:
    """Members by replica and stage."""

    stages: tuple[tuple[StageTimes, ...], ...]
    """What each member takes: messages and buckets are those of its stage, times may be its own. A single row stands
    for all replicas, here and in `sites`."""
    sites: tuple[tuple[str, ...], ...]
    ways: Ways
    transport: TransportName
    all_reduce: AllReduceName = "auto"
    reproducible: bool = False
    """True adds up gradients in a fixed tree over grains."""
    has_copies: bool = False
    """True gives each member of a single replica a copy, at its own site, which gets the gradients of every step."""
    host_cores: float | None = None
    """Cores that all members share, where they run on one machine; None where each has its own."""
    ties: tuple[Tie, ...] = ()
    """What several stages share; summed between them after each stage's own reduce."""
    library: AllReduceTime | None = None
    """What an all-reduce takes once all have joined, where a library does it."""
    looks: Looks = "store"
    parameter_element_bytes: int = 4

    def __post_init__(self) -> None:
        if len(self.sites[0]) == 1 and len(self.sites) == 1 and len(self.stages) == 1 and not self.has_copies:
            return  # a single row may stand for one member, who exchanges with nobody
        sites = {site for replica in self.sites for site in replica}
        for site in sites:
            ends = [(site, other) for other in sites] if self.is_direct else [(site, STORE_SITE), (STORE_SITE, site)]
            for way in ends:
                if way not in self.ways and (way[0] != way[1] or self._num_at(site) > 1 or len(self.sites) == 1):
                    raise PlanError(
                        f"no link from {way[0]!r} to {way[1]!r} is known, but members exchange over it; "
                        "measure it with `zooid probe` and give the file with --links"
                    )

    @property
    def is_direct(self) -> bool:
        """Whether members are connected with one another."""
        return self.transport != "store"

    @property
    def rows_of_sites(self) -> tuple[tuple[str, ...], ...]:
        """The sites of all members, by replica and stage. Copies are the last row, if there are any."""
        return self.sites * 2 if self.has_copies else self.sites

    def of_replicas(self, number: int) -> "Layout":
        """With a row for each."""
        if len(self.stages) == len(self.sites) == number:
            return self
        rows = self.stages * number if len(self.stages) == 1 else self.stages
        sites = self.sites * number if len(self.sites) == 1 else self.sites
        if len(rows) != number or len(sites) != number:
            raise PlanError(
                f"members are given for {len(self.stages)} replica(s) and sites for {len(self.sites)}; "
                f"the schedule has {number}"
            )
        return replace(self, stages=rows, sites=sites)

    def _num_at(self, site: str) -> int:
        return sum(replica.count(site) for replica in self.sites)


def alike(
    stages: Sequence[StageTimes],
    way: Way,
    *,
    back: Way | None = None,
    transport: TransportName = "store",
    looks: Looks = "store",
    all_reduce: AllReduceName = "auto",
    host_cores: float | None = None,
    ties: Sequence[Tie] = (),
) -> Layout:
    """All members in one place, with the same way to one another, or to the store and `back` from it."""
    site = "here"
    ways = {(site, site): way, (site, STORE_SITE): way, (STORE_SITE, site): back or way}
    return Layout(
        stages=(tuple(stages),),
        sites=((site,) * len(stages),),
        ways=ways,
        transport=transport,
        looks=looks,
        all_reduce=all_reduce,
        host_cores=host_cores,
        ties=tuple(ties),
    )


def ways_from(links: Iterable[Link]) -> dict[tuple[str, str], Way]:
    """What measured links say about each direction: the rate of one member, of one stream, and of all together."""
    rows: defaultdict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in links:
        rows[link.from_site, link.to_site].append(link)
    return {ends: _way(measured) for ends, measured in rows.items()}


def _way(rows: Sequence[Link]) -> Way:
    fewest = min(link.num_members for link in rows)
    alone = [link for link in rows if link.num_members == fewest]
    best = max(alone, key=lambda link: link.bandwidth_bytes_per_s)
    rtt_s = min(link.rtt_s for link in alone)
    single = [link for link in alone if link.num_streams == 1]
    streams = [link.stream_bytes_per_s for link in alone if link.stream_bytes_per_s is not None]
    if single and single[0] is not best:
        streams.append(single[0].bandwidth_bytes_per_s)
    total, requests = math.inf, math.inf
    most = max(link.num_members for link in rows)
    if most > fewest:
        together = [link for link in rows if link.num_members == most]
        rate = max(link.bandwidth_bytes_per_s for link in together)
        if rate < _FALLEN * best.bandwidth_bytes_per_s:
            total = max(link.num_members * link.bandwidth_bytes_per_s for link in rows)
        slowest_s = min(link.rtt_s for link in together)
        if slowest_s > _RISEN * rtt_s:
            requests = most / slowest_s
    return Way(
        bytes_per_s=best.bandwidth_bytes_per_s,
        rtt_s=rtt_s,
        stream_bytes_per_s=max(streams, default=math.inf),
        total_bytes_per_s=total,
        total_requests_per_s=requests,
        cpu_s=best.cpu_s,
        cpu_s_per_byte=best.cpu_s_per_byte,
        spread=best.spread,
    )
