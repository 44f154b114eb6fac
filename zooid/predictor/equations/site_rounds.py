"""An averaging round between members at several sites: its time, the streams it needs, and the bytes on every way.

`averaging_s`, `hierarchical_s` and `hub_s` say what a round takes at given rates; here the rates follow from measured
links and from how many members each site has. A link is what ONE member gets, so that sites with more members have
more of it; a site's own uplink, where it has one, is shared by all of its members.

The last axis of `site_sizes` is the site, n of them; the last two of everything between sites are from and to. A site
of size 0 is none. Where a round needs a way that does not exist, its time is infinite.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.predictor.equations.all_reduce import averaging_s, hierarchical_s
from zooid.predictor.equations.array_checks import Array, at_least
from zooid.predictor.equations.hub import hub_s


@dataclass(frozen=True)
class SiteLinks:
    """What the ways between sites carry; on the diagonal, those between members of one site."""

    stream_bytes_per_s: Array
    """r, of a single stream; 0 where there is no way."""
    link_bytes_per_s: Array
    """C, of one member with enough streams; 0 where there is no way."""
    latency_s: Array
    """One way."""
    uplink_bytes_per_s: Array
    """U, of a whole site each way to all others; infinite where members have links of their own."""

    @property
    def num_sites(self) -> int:
        return len(self.uplink_bytes_per_s)

    @property
    def members_bytes_per_s(self) -> Array:
        """w: what a member's own interface carries, as far as links inside its site tell."""
        inside = np.diagonal(self.link_bytes_per_s)
        return np.where(inside > 0, inside, np.inf)


def streams_of_everyone(site_sizes: ArrayLike, links: SiteLinks, most: int, slack: float = 0.0) -> Array:
    """Streams for each pair of members where everyone averages with everyone: the fewest that come within `slack` of
    the best, min(k r, C / max(peers there, peers here)).

    >>> atlantic = np.array([[1e9, 26.25e6], [26.25e6, 1e9]])
    >>> links = SiteLinks(atlantic, np.array([[1e9, 750e6], [750e6, 1e9]]), 0 * atlantic, np.full(2, np.inf))
    >>> streams_of_everyone([1, 1], links, 80).tolist(), streams_of_everyone([1, 4], links, 80, 0.02)[0, 1].item()
    ([[1.0, 29.0], [29.0, 1.0]], 7.0)
    """
    peers = _peers(at_least(0, "site_sizes", site_sizes))
    sharing = np.maximum(np.maximum(peers, np.swapaxes(peers, -1, -2)), 1)
    return _fewest(links.stream_bytes_per_s, links.link_bytes_per_s / sharing, most, slack)


def streams_of_sites(site_sizes: ArrayLike, links: SiteLinks, most: int, slack: float = 0.0) -> Array:
    """Streams for each pair of members that average by site or through a hub: between sites of n and m members run
    max(n, m) pairs, so the fewest within `slack` of min(k max(n, m) r, min(n, m) C); inside, of min(k (n−1) r, C)."""
    n = at_least(0, "site_sizes", site_sizes)
    inside = np.eye(links.num_sites, dtype=bool)
    pairs = np.where(inside, n[..., None] - 1, np.maximum(n[..., None], n[..., None, :]))
    capacity = links.link_bytes_per_s * np.where(inside, 1, np.minimum(n[..., None], n[..., None, :]))
    return _fewest(links.stream_bytes_per_s * np.maximum(pairs, 1), capacity, most, slack)


def everyone_s(num_bytes: float, site_sizes: ArrayLike, links: SiteLinks, streams: Array) -> Array:
    """`averaging_s` where ways differ: r is the slowest pair's, k r of them; C is what a member's interface carries if
    what goes to each site takes its part of the time at that link, (N−1) / Σ peers/C, and no more than inside its own
    site; with an uplink, at most (N−1) U / (n (N−n)). The slowest member decides.

    With one link for all, or one site, that is `averaging_s` itself.
    """
    n = at_least(0, "site_sizes", site_sizes)
    total = n.sum(axis=-1)
    peers = _peers(n)
    has_way, is_complete = _ways(peers > 0, links)
    rate = np.where(has_way, streams * links.stream_bytes_per_s, np.inf).min(axis=-1)
    seconds = peers * _per_byte(links.link_bytes_per_s)
    arriving = peers * _per_byte(links.link_bytes_per_s.T)
    load = np.maximum(seconds.sum(axis=-1), arriving.sum(axis=-1))
    load = np.maximum(load, n * (total[..., None] - n) / links.uplink_bytes_per_s)
    others = np.maximum(total - 1, 1)[..., None]
    load = np.maximum(load, (n > 0) * (others / links.members_bytes_per_s))
    capacity = np.divide(others, load, out=np.full(load.shape, np.inf), where=load > 0)
    moved = averaging_s(num_bytes, total[..., None], rate, capacity).max(axis=-1)
    latency = np.where(has_way, links.latency_s, 0.0).max(axis=(-1, -2))
    return _or_never(moved + 2 * latency, is_complete)


def by_site_s(
    num_bytes: float, site_sizes: ArrayLike, links: SiteLinks, streams: Array, num_chunks: ArrayLike = 1
) -> Array:
    """`hierarchical_s` with, for G sites, w = min((n−1) k r, C) inside, and between sites

        C_g = (G−1) / max( 1/(k max(n, m) r)  slowest way,   Σ 1/(n C)  out and in,   (G−1)/U )

    since a site sends s/G to each of the others, twice, over all its members.
    """
    n = at_least(0, "site_sizes", site_sizes)
    inside, between, is_complete = _between(n, links)
    pairs = np.maximum(n[..., None], n[..., None, :])
    slowest = between * _per_byte(streams * pairs * links.stream_bytes_per_s)
    members = np.maximum(n, 1)
    leaving = (between * _per_byte(links.link_bytes_per_s)).sum(axis=-1) / members
    arriving = (between * _per_byte(links.link_bytes_per_s.T)).sum(axis=-1) / members
    num_others = between.sum(axis=-1)
    load = np.maximum(slowest.max(axis=-1), np.maximum(leaving, arriving))
    load = np.maximum(load, num_others / links.uplink_bytes_per_s)
    capacity = np.divide(num_others, load, out=np.full(load.shape, np.inf), where=load > 0)
    moved = hierarchical_s(
        num_bytes,
        n,
        _inside_bytes_per_s(n, links, streams),
        capacity,
        np.where(inside, links.latency_s, 0.0).max(axis=(-1, -2)),
        (between * links.latency_s).max(axis=(-1, -2)),
        num_chunks,
    )
    return _or_never(moved, is_complete)


def through_hub_s(
    num_bytes: float, site_sizes: ArrayLike, hub: int, links: SiteLinks, streams: Array, num_chunks: ArrayLike = 1
) -> Array:
    """`hub_s` with c = min(k max(n, m) r, n C, m C, U) for a site of n members and a hub of m, and for the hub itself
    (G−1) / max( Σ 1/(m C), (G−1)/U )."""
    n = at_least(0, "site_sizes", site_sizes)
    is_hub = np.arange(links.num_sites) == hub
    inside, between, is_complete = _between(n, links, hub)
    num_others = np.maximum(np.sum(n > 0, axis=-1) - 1, 0)[..., None]
    members = np.maximum(n, 1)
    ways = []
    for stream, link, each in (
        (links.stream_bytes_per_s[:, hub], links.link_bytes_per_s[:, hub], streams[..., :, hub]),
        (links.stream_bytes_per_s[hub], links.link_bytes_per_s[hub], streams[..., hub, :]),
    ):
        here = members[..., hub, None]
        own = np.minimum(each * np.maximum(members, here) * stream, np.minimum(members, here) * link)
        others = _others(n, is_hub, _per_byte(link)).sum(axis=-1)[..., None] / here
        load = np.maximum(others, num_others / links.uplink_bytes_per_s[hub])
        whole = np.divide(num_others, load, out=np.full(load.shape, np.inf), where=load > 0)
        rate = np.where(is_hub, whole, np.minimum(own, links.uplink_bytes_per_s))
        ways.append(np.where(rate > 0, rate, np.inf))
    moved = hub_s(
        num_bytes,
        n,
        hub,
        _inside_bytes_per_s(n, links, streams),
        ways[0],
        ways[1],
        np.where(inside, links.latency_s, 0.0).max(axis=(-1, -2)),
        (between * links.latency_s).max(axis=(-1, -2)),
        num_chunks,
    )
    return _or_never(moved, is_complete)


def everyone_bytes(num_bytes: float, site_sizes: ArrayLike) -> Array:
    """What a round sends from each site to each: 2s/N from every member to every other.

    >>> everyone_bytes(6e9, [1, 2]).tolist()
    [[0.0, 8000000000.0], [8000000000.0, 8000000000.0]]
    """
    n = at_least(0, "site_sizes", site_sizes)
    total = np.maximum(n.sum(axis=-1), 1)[..., None, None]
    sent: Array = 2 * num_bytes / total * n[..., None] * _peers(n)
    return sent


def by_site_bytes(num_bytes: float, site_sizes: ArrayLike) -> Array:
    """2s/G from each of G sites to each other, 2s(n−1) inside."""
    n = at_least(0, "site_sizes", site_sizes)
    num_sites = np.maximum(np.sum(n > 0, axis=-1), 1)[..., None, None]
    exchanged: Array = 2 * num_bytes / num_sites * _apart(n)
    return _inside_bytes(num_bytes, n) + exchanged


def through_hub_bytes(num_bytes: float, site_sizes: ArrayLike, hub: int) -> Array:
    """s from each site to the hub and s back, 2s(n−1) inside."""
    n = at_least(0, "site_sizes", site_sizes)
    exchanged: Array = np.where(_apart(n) & _touches(n.shape[-1], hub), num_bytes, 0.0)
    return _inside_bytes(num_bytes, n) + exchanged


def _others(site_sizes: Array, is_hub: NDArray[np.bool_], values: Array) -> Array:
    """The values of sites that have members and are not the hub."""
    kept: Array = np.where((site_sizes > 0) & ~is_hub, values, 0.0)
    return kept


def _fewest(stream: Array, capacity: Array, most: int, slack: float) -> Array:
    """The least k for which min(k·stream, capacity) is within `slack` of its value at `most`."""
    wanted = (1 - slack) * np.minimum(most * stream, capacity)
    each = np.divide(wanted, stream, out=np.ones(np.broadcast_shapes(wanted.shape, stream.shape)), where=stream > 0)
    fewest: Array = np.clip(np.ceil(each * (1 - 1e-12)), 1, most)
    return fewest


def _peers(n: Array) -> Array:
    """How many members of each site a member of each site exchanges with; of a site that is none, nobody."""
    peers: Array = np.maximum(n[..., None, :] - np.eye(n.shape[-1]), 0) * (n[..., None] > 0)
    return peers


def _apart(n: Array) -> NDArray[np.bool_]:
    """Pairs of different sites that have members."""
    both: NDArray[np.bool_] = (n[..., None] > 0) & (n[..., None, :] > 0) & ~np.eye(n.shape[-1], dtype=bool)
    return both


def _touches(num_sites: int, hub: int) -> NDArray[np.bool_]:
    at = np.arange(num_sites) == hub
    touched: NDArray[np.bool_] = at[:, None] | at[None, :]
    return touched


def _between(n: Array, links: SiteLinks, hub: int | None = None) -> tuple[NDArray[np.bool_], Array, NDArray[np.bool_]]:
    """Which ways inside and between sites a round uses, and whether all of them exist."""
    between = _apart(n) if hub is None else _apart(n) & _touches(n.shape[-1], hub)
    inside = (n > 1)[..., None] & np.eye(n.shape[-1], dtype=bool)
    _, is_complete = _ways(inside | between, links)
    return inside, between.astype(np.float64), is_complete


def _ways(used: NDArray[np.bool_], links: SiteLinks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The used ways that exist, and whether that is all of them."""
    exists = links.link_bytes_per_s > 0
    is_complete: NDArray[np.bool_] = np.all(~used | exists, axis=(-1, -2))
    return used & exists, is_complete


def _per_byte(bytes_per_s: Array) -> Array:
    """Seconds for a byte; 0 where there is no way, which `_or_never` has the last word about."""
    return np.divide(1.0, bytes_per_s, out=np.zeros(bytes_per_s.shape), where=bytes_per_s > 0)


def _inside_bytes_per_s(n: Array, links: SiteLinks, streams: Array) -> Array:
    own = links.members_bytes_per_s
    stream = np.diagonal(streams * links.stream_bytes_per_s, axis1=-2, axis2=-1)
    rate = np.where(n > 1, np.minimum((n - 1) * stream, own), own)
    return np.where(rate > 0, rate, np.inf)


def _inside_bytes(num_bytes: float, n: Array) -> Array:
    sent: Array = 2 * num_bytes * np.maximum(n - 1, 0)[..., None] * np.eye(n.shape[-1])
    return sent


def _or_never(time_s: Array, is_complete: NDArray[np.bool_]) -> Array:
    possible: Array = np.where(is_complete, time_s, np.inf)
    return possible
