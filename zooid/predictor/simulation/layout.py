"""What a simulated step runs on: the times of every stage, the site of every member, and the links between sites."""

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
"""How readers find messages in the store: at once, as the papers assume; by polling a local folder, which is free; or
by polling a store, where each poll is a paid request and members learn when to poll."""

AllReduceTime = Callable[[int, int], float]
"""Seconds of an all-reduce, as a function of its bytes and its number of members."""

_SHARED_BANDWIDTH = 0.9
"""Members share bandwidth if together each gets less than this fraction of what one gets alone."""
_SHARED_REQUESTS = 1.5
"""Members share a request rate if together their round trip is longer than one alone by more than this factor."""


@dataclass(frozen=True)
class DirectedLink:
    """A link in one direction: from one site to another, to the store, or from the store."""

    bytes_per_s: float
    """The maximum rate of one member."""
    rtt_s: float
    stream_bytes_per_s: float = math.inf
    total_bytes_per_s: float = math.inf
    """The maximum rate of all members together."""
    total_requests_per_s: float = math.inf
    """The maximum rate at which a store answers the requests of all members."""
    cpu_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    spread: float = 0.0


DirectedLinks = Mapping[tuple[str, str], DirectedLink]
"""Links by source site and target site."""


@dataclass(frozen=True)
class Layout:
    """Members by replica and stage, and the links between them."""

    stages: tuple[tuple[StageTimes, ...], ...]
    """Times of each member. Members of a stage share message and bucket sizes. A single row holds for all replicas,
    here and in `sites`."""
    sites: tuple[tuple[str, ...], ...]
    links: DirectedLinks
    transport: TransportName
    all_reduce: AllReduceName = "auto"
    reproducible: bool = False
    """Whether gradients are summed in a fixed tree over grains."""
    has_copies: bool = False
    """Whether each member of a single replica has a copy at its site, which receives the gradients of every step."""
    host_cores: float | None = None
    """Number of cores that all members share on one machine; None where each member has its own."""
    ties: tuple[Tie, ...] = ()
    """Parameters that several stages share. Their gradients are summed after each stage's own reduce."""
    library: AllReduceTime | None = None
    """Time of a library's all-reduce, from when all members have joined."""
    looks: Looks = "store"
    parameter_element_bytes: int = 4

    def __post_init__(self) -> None:
        if len(self.sites[0]) == 1 and len(self.sites) == 1 and len(self.stages) == 1 and not self.has_copies:
            return  # a single member, perhaps one of several replicas, may exchange with nobody
        sites = {site for replica in self.sites for site in replica}
        for site in sites:
            pairs = [(site, other) for other in sites] if self.is_direct else [(site, STORE_SITE), (STORE_SITE, site)]
            num_members = sum(replica.count(site) for replica in self.sites)
            for source, target in pairs:
                is_used = source != target or num_members > 1 or len(self.sites) == 1
                if is_used and (source, target) not in self.links:
                    raise PlanError(
                        f"no link from {source!r} to {target!r} is known, but members exchange over it; "
                        "measure it with `zooid probe` and give the file with --links"
                    )

    @property
    def is_direct(self) -> bool:
        """Whether members are connected with one another."""
        return self.transport != "store"

    @property
    def rows_of_sites(self) -> tuple[tuple[str, ...], ...]:
        """The sites of all members by replica and stage. Copies, if any, are the last row."""
        return self.sites * 2 if self.has_copies else self.sites

    def of_replicas(self, num_replicas: int) -> "Layout":
        """Return the same layout with one row for each replica."""
        if len(self.stages) == len(self.sites) == num_replicas:
            return self
        rows = self.stages * num_replicas if len(self.stages) == 1 else self.stages
        sites = self.sites * num_replicas if len(self.sites) == 1 else self.sites
        if len(rows) != num_replicas or len(sites) != num_replicas:
            raise PlanError(
                f"members are given for {len(self.stages)} replica(s) and sites for {len(self.sites)}; "
                f"the schedule has {num_replicas}"
            )
        return replace(self, stages=rows, sites=sites)


def directed_links(links: Iterable[Link]) -> dict[tuple[str, str], DirectedLink]:
    """Combine all measurements of each link into the rates of one member, of one stream, and of all members."""
    measured: defaultdict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in links:
        measured[link.from_site, link.to_site].append(link)
    return {ends: _combined(rows) for ends, rows in measured.items()}


def _combined(rows: Sequence[Link]) -> DirectedLink:
    min_members = min(link.num_members for link in rows)
    max_members = max(link.num_members for link in rows)
    alone = [link for link in rows if link.num_members == min_members]
    best = max(alone, key=lambda link: link.bandwidth_bytes_per_s)
    rtt_s = min(link.rtt_s for link in alone)
    single_stream = [link for link in alone if link.num_streams == 1]
    stream_rates = [link.stream_bytes_per_s for link in alone if link.stream_bytes_per_s is not None]
    if single_stream and single_stream[0] is not best:
        stream_rates.append(single_stream[0].bandwidth_bytes_per_s)
    total_rate, request_rate = math.inf, math.inf
    if max_members > min_members:
        crowded = [link for link in rows if link.num_members == max_members]
        if max(link.bandwidth_bytes_per_s for link in crowded) < _SHARED_BANDWIDTH * best.bandwidth_bytes_per_s:
            total_rate = max(link.num_members * link.bandwidth_bytes_per_s for link in rows)
        crowded_rtt_s = min(link.rtt_s for link in crowded)
        if crowded_rtt_s > _SHARED_REQUESTS * rtt_s:
            request_rate = max_members / crowded_rtt_s
    return DirectedLink(
        bytes_per_s=best.bandwidth_bytes_per_s,
        rtt_s=rtt_s,
        stream_bytes_per_s=max(stream_rates, default=math.inf),
        total_bytes_per_s=total_rate,
        total_requests_per_s=request_rate,
        cpu_s=best.cpu_s,
        cpu_s_per_byte=best.cpu_s_per_byte,
        spread=best.spread,
    )
