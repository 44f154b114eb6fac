"""Averaging rounds between members at several sites: their time, their streams, and their bytes on each link.

`averaging_s`, `hierarchical_s` and `hub_s` give the time of a round at known rates. Here the rates follow from measured
links and from the number of members at each site. A link's rate is that of ONE member, so a site with more members
sends faster. A site's uplink, if it has one, is shared by all of its members.

The last axis of `site_sizes` (n) is the site. The last two axes of everything between sites are source and target. A
site of size 0 is absent. If a round needs a link that does not exist, its time is infinite.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.predictor.equations.all_reduce import averaging_s, hierarchical_s, hub_s
from zooid.predictor.equations.array_checks import Array, at_least


@dataclass(frozen=True)
class SiteLinks:
    """Rates and latencies of the links between sites; the diagonal holds the links inside each site."""

    stream_bytes_per_s: Array
    """r, the rate of a single stream; 0 where there is no link."""
    link_bytes_per_s: Array
    """C, the rate of one member with enough streams; 0 where there is no link."""
    latency_s: Array
    """Latency in one direction."""
    uplink_bytes_per_s: Array
    """U, the rate of a whole site to or from all others; infinite where members have links of their own."""

    @property
    def num_sites(self) -> int:
        return len(self.uplink_bytes_per_s)

    @property
    def members_bytes_per_s(self) -> Array:
        """w, the rate of a member's own interface, taken from the link inside its site."""
        inside = np.diagonal(self.link_bytes_per_s)
        return np.where(inside > 0, inside, np.inf)


def streams_of_everyone(site_sizes: ArrayLike, links: SiteLinks, max_streams: int, slack: float = 0.0) -> Array:
    """Number of streams for each pair of members when everyone averages with everyone.

    It is the smallest number whose rate is within `slack` of the best, min(k r, C / max(peers there, peers here)).

    >>> atlantic = np.array([[1e9, 26.25e6], [26.25e6, 1e9]])
    >>> links = SiteLinks(atlantic, np.array([[1e9, 750e6], [750e6, 1e9]]), 0 * atlantic, np.full(2, np.inf))
    >>> streams_of_everyone([1, 1], links, 80).tolist(), streams_of_everyone([1, 4], links, 80, 0.02)[0, 1].item()
    ([[1.0, 29.0], [29.0, 1.0]], 7.0)
    """
    peers = _peers(at_least(0, "site_sizes", site_sizes))
    sharing = np.maximum(np.maximum(peers, np.swapaxes(peers, -1, -2)), 1)
    return _min_streams(links.stream_bytes_per_s, links.link_bytes_per_s / sharing, max_streams, slack)


def streams_of_sites(site_sizes: ArrayLike, links: SiteLinks, max_streams: int, slack: float = 0.0) -> Array:
    """Number of streams for each pair of members that average by site or through a hub.

    Between sites of n and m members there are max(n, m) pairs. The number is the smallest within `slack` of
    min(k max(n, m) r, min(n, m) C) between sites, and of min(k (n−1) r, C) inside.
    """
    n = at_least(0, "site_sizes", site_sizes)
    inside = np.eye(links.num_sites, dtype=bool)
    pairs = np.where(inside, n[..., None] - 1, np.maximum(n[..., None], n[..., None, :]))
    capacity = links.link_bytes_per_s * np.where(inside, 1, np.minimum(n[..., None], n[..., None, :]))
    return _min_streams(links.stream_bytes_per_s * np.maximum(pairs, 1), capacity, max_streams, slack)


def everyone_s(num_bytes: float, site_sizes: ArrayLike, links: SiteLinks, streams: Array) -> Array:
    """`averaging_s` with links that differ; the slowest member decides.

    r is the rate of the slowest pair, k r. C is the rate of a member's interface if its traffic to each site takes its
    part of the time on that link: (N−1) / Σ peers/C. It is at most the rate inside its own site and, with an uplink,
    (N−1) U / (n (N−n)). With equal links, or one site, the result is `averaging_s` itself.
    """
    n = at_least(0, "site_sizes", site_sizes)
    total = n.sum(axis=-1)
    peers = _peers(n)
    has_link, is_complete = _existing(peers > 0, links)
    rate = np.where(has_link, streams * links.stream_bytes_per_s, np.inf).min(axis=-1)
    sending = peers * _per_byte(links.link_bytes_per_s)
    receiving = peers * _per_byte(links.link_bytes_per_s.T)
    load = np.maximum(sending.sum(axis=-1), receiving.sum(axis=-1))
    load = np.maximum(load, n * (total[..., None] - n) / links.uplink_bytes_per_s)
    others = np.maximum(total - 1, 1)[..., None]
    load = np.maximum(load, (n > 0) * (others / links.members_bytes_per_s))
    moved = averaging_s(num_bytes, total[..., None], rate, _capacity(others, load)).max(axis=-1)
    latency = np.where(has_link, links.latency_s, 0.0).max(axis=(-1, -2))
    return _or_never(moved + 2 * latency, is_complete)


def by_site_s(
    num_bytes: float, site_sizes: ArrayLike, links: SiteLinks, streams: Array, num_chunks: ArrayLike = 1
) -> Array:
    """`hierarchical_s` with, for G sites, w = min((n−1) k r, C) inside, and between sites

        C_g = (G−1) / max( 1/(k max(n, m) r)  slowest link,   Σ 1/(n C)  out and in,   (G−1)/U )

    since all members of a site together send s/G to each other site, twice.
    """
    n = at_least(0, "site_sizes", site_sizes)
    inside, between, is_complete = _between(n, links)
    pairs = np.maximum(n[..., None], n[..., None, :])
    slowest = between * _per_byte(streams * pairs * links.stream_bytes_per_s)
    members = np.maximum(n, 1)
    sending = (between * _per_byte(links.link_bytes_per_s)).sum(axis=-1) / members
    receiving = (between * _per_byte(links.link_bytes_per_s.T)).sum(axis=-1) / members
    num_others = between.sum(axis=-1)
    load = np.maximum(slowest.max(axis=-1), np.maximum(sending, receiving))
    load = np.maximum(load, num_others / links.uplink_bytes_per_s)
    moved = hierarchical_s(
        num_bytes,
        n,
        _inside_bytes_per_s(n, links, streams),
        _capacity(num_others, load),
        np.where(inside, links.latency_s, 0.0).max(axis=(-1, -2)),
        (between * links.latency_s).max(axis=(-1, -2)),
        num_chunks,
    )
    return _or_never(moved, is_complete)


def through_hub_s(
    num_bytes: float, site_sizes: ArrayLike, hub: int, links: SiteLinks, streams: Array, num_chunks: ArrayLike = 1
) -> Array:
    """`hub_s` with c = min(k max(n, m) r, n C, m C, U) for a site of n members and a hub of m members.

    For the hub itself, c = (G−1) / max( Σ 1/(m C), (G−1)/U ).
    """
    n = at_least(0, "site_sizes", site_sizes)
    is_hub = np.arange(links.num_sites) == hub
    inside, between, is_complete = _between(n, links, hub)
    num_others = np.maximum(np.sum(n > 0, axis=-1) - 1, 0)[..., None]
    members = np.maximum(n, 1)
    hub_members = members[..., hub, None]
    is_other = (n > 0) & ~is_hub
    rates = []
    for stream_rate, link_rate, num_streams in (
        (links.stream_bytes_per_s[:, hub], links.link_bytes_per_s[:, hub], streams[..., :, hub]),
        (links.stream_bytes_per_s[hub], links.link_bytes_per_s[hub], streams[..., hub, :]),
    ):
        site_rate = np.minimum(
            num_streams * np.maximum(members, hub_members) * stream_rate, np.minimum(members, hub_members) * link_rate
        )
        others_load = np.where(is_other, _per_byte(link_rate), 0.0).sum(axis=-1)[..., None] / hub_members
        hub_load = np.maximum(others_load, num_others / links.uplink_bytes_per_s[hub])
        hub_rate = _capacity(num_others, hub_load)
        rate = np.where(is_hub, hub_rate, np.minimum(site_rate, links.uplink_bytes_per_s))
        rates.append(np.where(rate > 0, rate, np.inf))
    moved = hub_s(
        num_bytes,
        n,
        hub,
        _inside_bytes_per_s(n, links, streams),
        rates[0],
        rates[1],
        np.where(inside, links.latency_s, 0.0).max(axis=(-1, -2)),
        (between * links.latency_s).max(axis=(-1, -2)),
        num_chunks,
    )
    return _or_never(moved, is_complete)


def everyone_bytes(num_bytes: float, site_sizes: ArrayLike) -> Array:
    """Bytes of a round from each site to each other: every member sends 2s/N to every other member.

    >>> everyone_bytes(6e9, [1, 2]).tolist()
    [[0.0, 8000000000.0], [8000000000.0, 8000000000.0]]
    """
    n = at_least(0, "site_sizes", site_sizes)
    total = np.maximum(n.sum(axis=-1), 1)[..., None, None]
    sent: Array = 2 * num_bytes / total * n[..., None] * _peers(n)
    return sent


def by_site_bytes(num_bytes: float, site_sizes: ArrayLike) -> Array:
    """Bytes of a round: 2s/G from each of G sites to each other, and 2s(n−1) inside each."""
    n = at_least(0, "site_sizes", site_sizes)
    num_sites = np.maximum(np.sum(n > 0, axis=-1), 1)[..., None, None]
    exchanged: Array = 2 * num_bytes / num_sites * _apart(n)
    return _inside_bytes(num_bytes, n) + exchanged


def through_hub_bytes(num_bytes: float, site_sizes: ArrayLike, hub: int) -> Array:
    """Bytes of a round: s from each site to the hub, s back, and 2s(n−1) inside each."""
    n = at_least(0, "site_sizes", site_sizes)
    exchanged: Array = np.where(_apart(n) & _touches(n.shape[-1], hub), num_bytes, 0.0)
    return _inside_bytes(num_bytes, n) + exchanged


def _min_streams(stream_rate: Array, capacity: Array, max_streams: int, slack: float) -> Array:
    """The smallest k for which min(k · stream_rate, capacity) is within `slack` of its value at k = `max_streams`."""
    target = (1 - slack) * np.minimum(max_streams * stream_rate, capacity)
    ones = np.ones(np.broadcast_shapes(target.shape, stream_rate.shape))
    exact = np.divide(target, stream_rate, out=ones, where=stream_rate > 0)
    streams: Array = np.clip(np.ceil(exact * (1 - 1e-12)), 1, max_streams)
    return streams


def _peers(n: Array) -> Array:
    """Number of members at each target site with which a member of each source site exchanges."""
    peers: Array = np.maximum(n[..., None, :] - np.eye(n.shape[-1]), 0) * (n[..., None] > 0)
    return peers


def _apart(n: Array) -> NDArray[np.bool_]:
    """Whether two sites differ and both have members."""
    both: NDArray[np.bool_] = (n[..., None] > 0) & (n[..., None, :] > 0) & ~np.eye(n.shape[-1], dtype=bool)
    return both


def _touches(num_sites: int, hub: int) -> NDArray[np.bool_]:
    """Whether one of two sites is the hub."""
    is_hub = np.arange(num_sites) == hub
    touched: NDArray[np.bool_] = is_hub[:, None] | is_hub[None, :]
    return touched


def _between(n: Array, links: SiteLinks, hub: int | None = None) -> tuple[NDArray[np.bool_], Array, NDArray[np.bool_]]:
    """The links inside and between sites that a round uses, and whether all of them exist."""
    between = _apart(n) if hub is None else _apart(n) & _touches(n.shape[-1], hub)
    inside = (n > 1)[..., None] & np.eye(n.shape[-1], dtype=bool)
    _, is_complete = _existing(inside | between, links)
    return inside, between.astype(np.float64), is_complete


def _existing(used: NDArray[np.bool_], links: SiteLinks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The used links that exist, and whether all used links exist."""
    exists = links.link_bytes_per_s > 0
    is_complete: NDArray[np.bool_] = np.all(~used | exists, axis=(-1, -2))
    return used & exists, is_complete


def _per_byte(bytes_per_s: Array) -> Array:
    """Seconds for a byte; 0 where there is no link, since `_or_never` handles that case."""
    return np.divide(1.0, bytes_per_s, out=np.zeros(bytes_per_s.shape), where=bytes_per_s > 0)


def _capacity(amount: Array, load: Array) -> Array:
    """The amount over its load; infinite where there is no load."""
    capacity: Array = np.divide(amount, load, out=np.full(load.shape, np.inf), where=load > 0)
    return capacity


def _inside_bytes_per_s(n: Array, links: SiteLinks, streams: Array) -> Array:
    interface = links.members_bytes_per_s
    stream_rate = np.diagonal(streams * links.stream_bytes_per_s, axis1=-2, axis2=-1)
    rate = np.where(n > 1, np.minimum((n - 1) * stream_rate, interface), interface)
    return np.where(rate > 0, rate, np.inf)


def _inside_bytes(num_bytes: float, n: Array) -> Array:
    sent: Array = 2 * num_bytes * np.maximum(n - 1, 0)[..., None] * np.eye(n.shape[-1])
    return sent


def _or_never(time_s: Array, is_complete: NDArray[np.bool_]) -> Array:
    """The time, or infinity where a link is missing."""
    possible: Array = np.where(is_complete, time_s, np.inf)
    return possible
