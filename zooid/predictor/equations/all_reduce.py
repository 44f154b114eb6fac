"""Times of all-reduces, for the algorithms in `schedule/transfer_lists.py`.

Symbols: s bytes, n members, w bytes/s in each direction for each member, latency l. A single member takes no time.
`pipelined_s`, `streaming_bound_s` and `ring_s` take the same arguments, so that `funcpipe_step_s` accepts any of them.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.predictor.equations.array_checks import Array, above_zero, at_least, where

AllReduce: TypeAlias = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], Array]
"""Seconds of an all-reduce, from bytes, number of members, bytes/s of each member, and latency."""


def pipelined_s(
    num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0
) -> Array:
    """FuncPipe's pipelined scatter-reduce through a store: 2s/w + (n + 2)l (FuncPipe (2)).

    >>> float(pipelined_s(280e6, 8, 70e6))
    8.0
    """
    s, n, w, lat = _checked(num_bytes, num_members, bytes_per_s, latency_s)
    return where(n > 1, 2 * s / w + (n + 2) * lat)


def streaming_bound_s(
    num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0
) -> Array:
    """A lower bound on any all-reduce, given by each member's downlink: 2s(n−1)/(nw).

    zooid's `streaming` comes close to it. Latency does not count: chunks hide all of it but the first and the last.

    >>> float(streaming_bound_s(280e6, 8, 70e6))
    7.0
    """
    s, n, w, _ = _checked(num_bytes, num_members, bytes_per_s, latency_s)
    return 2 * s * (n - 1) / (n * w)


def ring_s(num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0) -> Array:
    """A ring: 2(n−1) rounds of s/n bytes, each of which takes (s/n)/w + l (Hydrozoa §3.4, T^(D)).

    The paper prints the number of shards instead of the number of replicas, and half of the rounds.

    >>> float(ring_s(280e6, 8, 70e6, 0.5))
    14.0
    """
    s, n, w, lat = _checked(num_bytes, num_members, bytes_per_s, latency_s)
    return 2 * (n - 1) * (s / n / w + lat)


def shared_bytes_per_s(num_sharing: ArrayLike, own_bytes_per_s: ArrayLike, total_bytes_per_s: ArrayLike) -> Array:
    """The rate of each of k flows that share a capacity C: min(r, C/k).

    Streams share a link (clouds and continents §7, whose tables 5 to 7 are rates of single streams), and members share
    a store (FuncPipe §5.7: 10 Gbit/s for all).

    >>> streams = [1, 20, 80]  # across the Atlantic, in Mbit/s
    >>> (streams * shared_bytes_per_s(streams, 210, 6200)).tolist()
    [210.0, 4200.0, 6200.0]
    """
    number = at_least(1, "num_sharing", num_sharing)
    own = above_zero("own_bytes_per_s", own_bytes_per_s)
    return np.minimum(own, above_zero("total_bytes_per_s", total_bytes_per_s) / number)


def averaging_s(
    num_bytes: ArrayLike,
    num_members: ArrayLike,
    stream_bytes_per_s: ArrayLike,
    link_bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    streams_per_pair: ArrayLike = 1,
) -> Array:
    """Every member exchanges directly with every other: 2s(n−1)/n bytes leave each member over k(n−1) streams.

    With r bytes/s for a stream and C for a member's link, it takes 2s(n−1)/n / min(k(n−1)r, C) + 2l. While streams
    are the limit, that is 2s/(nkr) + 2l, which falls with more members, as clouds and continents §7 found.

    >>> averaging_s(1e9, [2, 4, 8], 10e6, 100e6).tolist()
    [100.0, 50.0, 25.0]
    >>> float(averaging_s(1e9, 2, 10e6, 100e6, streams_per_pair=10))
    10.0
    """
    s, n, r, lat = _checked(num_bytes, num_members, stream_bytes_per_s, latency_s)
    streams = np.maximum(n - 1, 1) * at_least(1, "streams_per_pair", streams_per_pair)
    rate = streams * shared_bytes_per_s(streams, r, link_bytes_per_s)
    return where(n > 1, 2 * s * (n - 1) / (n * rate) + 2 * lat)


def hierarchical_s(
    num_bytes: ArrayLike,
    site_sizes: ArrayLike,
    inside_bytes_per_s: ArrayLike,
    between_bytes_per_s: ArrayLike,
    inside_latency_s: ArrayLike = 0.0,
    between_latency_s: ArrayLike = 0.0,
    num_chunks: ArrayLike = 1,
) -> Array:
    """Time of an all-reduce that reduces inside each site, then between sites, and spreads the sum inside again.

    The transfers are those of `schedule.site_hierarchy`. The last axis of the first four arguments but `num_bytes` is
    the site; a site of size 0 is absent. `inside_bytes_per_s` is the rate w of each member, and `between_bytes_per_s`
    the rate C of a whole site to all others. For G sites of n members each:

        inside, twice:   s(n−1)/n / w       of the slowest site
        between, twice:  s(G−1)/G / min(C, nw)
        latencies:       2 l inside, 2 l between

    In one chunk these times add up. In K chunks they overlap: Σ/K + (1 − 1/K) · max of two loads. One is that of the
    busiest member's link, 2s(N−1)/N / w with N = nG; the other that of the busiest site, 2s(G−1)/G / C. With one site
    the result is the bound of a ring among its members.

    >>> float(hierarchical_s(1e9, [4, 4], 1e9, 0.5e9))
    3.5
    >>> float(hierarchical_s(1e9, [4, 4], 1e9, 0.5e9, num_chunks=1e9).round(3))
    2.0
    """
    s = at_least(0, "num_bytes", num_bytes)[..., None]
    n = at_least(0, "site_sizes", site_sizes)
    w, c = above_zero("inside_bytes_per_s", inside_bytes_per_s), above_zero("between_bytes_per_s", between_bytes_per_s)
    chunks = at_least(1, "num_chunks", num_chunks)
    num_sites = at_least(1, "number of `site_sizes` above 0", np.sum(n > 0, axis=-1))[..., None]
    members = np.maximum(n, 1)  # an absent site must not divide by 0
    inside = s * (members - 1) / (members * w)
    crossing = where(n > 0, s * (num_sites - 1) / num_sites)
    between = crossing / np.minimum(c, members * w)
    phases = 2 * (inside.max(axis=-1) + between.max(axis=-1))
    busiest_member = (2 * inside + 2 * crossing / (members * w)).max(axis=-1)
    busiest_site = (2 * crossing / c).max(axis=-1)
    moved: Array = phases / chunks + (1 - 1 / chunks) * np.maximum(busiest_member, busiest_site)
    return moved + _site_latency_s(n, num_sites[..., 0] > 1, inside_latency_s, between_latency_s)


def hub_s(
    num_bytes: ArrayLike,
    site_sizes: ArrayLike,
    hub: int,
    inside_bytes_per_s: ArrayLike,
    to_hub_bytes_per_s: ArrayLike,
    from_hub_bytes_per_s: ArrayLike,
    inside_latency_s: ArrayLike = 0.0,
    between_latency_s: ArrayLike = 0.0,
    num_chunks: ArrayLike = 1,
) -> Array:
    """Through a hub site, which others reach better than one another (clouds and continents §4).

    Each site reduces inside, sends its sum to the hub, receives the whole sum, and spreads it inside. The last axis of
    every argument about sites is the site; a site of size 0 is absent. The rates to and from the hub, c, are those of a
    whole site over all its streams; at the hub's own index they are the hub's total. For G sites of n members each:

        inside, twice:    s(n−1)/n / w                of the slowest site
        to the hub:       s / min(c, nw)              of the slowest site
                          s(G−1) / min(c, nw)         of the hub itself
        from the hub:     the same in the other direction
        latencies:        2 l inside, 2 l between

    In K chunks these overlap as in `hierarchical_s`: Σ/K + (1 − 1/K) · max of two loads. One is that of the busiest
    member's link, 2s(n−1)/n / w + s/(nw), or + s(G−1)/(nw) at the hub; the other that of the busiest link to the hub.

    >>> float(hub_s(1e9, [1, 1, 1], 0, 1e9, [1e9, 0.1e9, 0.2e9], [1e9, 0.1e9, 0.2e9]))
    20.0
    >>> float(hub_s(1e9, [1, 1, 1], 0, 1e9, [0.1e9, 0.1e9, 0.2e9], [1e9, 0.1e9, 0.2e9]))
    30.0
    """
    s = at_least(0, "num_bytes", num_bytes)[..., None]
    n = at_least(0, "site_sizes", site_sizes)
    at_least(1, "size of the hub", n[..., hub])
    w = above_zero("inside_bytes_per_s", inside_bytes_per_s)
    rates = [above_zero("to_hub_bytes_per_s", to_hub_bytes_per_s)]
    rates += [above_zero("from_hub_bytes_per_s", from_hub_bytes_per_s)]
    chunks = at_least(1, "num_chunks", num_chunks)
    num_others = np.sum(n > 0, axis=-1)[..., None] - 1
    members = np.maximum(n, 1)  # an absent site must not divide by 0
    is_hub = np.arange(n.shape[-1]) == hub
    inside = s * (members - 1) / (members * w)
    crossing = where((n > 0) & (num_others > 0), s * np.where(is_hub, num_others, 1))
    to_hub, from_hub = [(crossing / np.minimum(rate, members * w)).max(axis=-1) for rate in rates]
    phases = 2 * inside.max(axis=-1) + to_hub + from_hub
    busiest_member = (2 * inside + crossing / (members * w)).max(axis=-1)
    busiest_link = np.maximum(*((crossing / rate).max(axis=-1) for rate in rates))
    moved: Array = phases / chunks + (1 - 1 / chunks) * np.maximum(busiest_member, busiest_link)
    return moved + _site_latency_s(n, num_others[..., 0] > 0, inside_latency_s, between_latency_s)


def _site_latency_s(
    n: Array, is_wide: NDArray[np.bool_], inside_latency_s: ArrayLike, between_latency_s: ArrayLike
) -> Array:
    """Two latencies inside, if a site has several members, and two between sites, if there are several."""
    inside = (n > 1).any(axis=-1) * at_least(0, "inside_latency_s", inside_latency_s)
    total: Array = 2 * (inside + is_wide * at_least(0, "between_latency_s", between_latency_s))
    return total


def _checked(
    num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    return (
        at_least(0, "num_bytes", num_bytes),
        at_least(1, "num_members", num_members),
        above_zero("bytes_per_s", bytes_per_s),
        at_least(0, "latency_s", latency_s),
    )
