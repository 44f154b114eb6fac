"""How long an all-reduce takes, for each of the algorithms in `schedule/collectives.py`.

With s bytes, n members, w bytes/s each way for every member and latency l; a single member takes no time. The first
four share their arguments, so that a pipeline's formula can be given any of them.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from zooid.predictor.equations.array_checks import Array, above_zero, at_least, where
from zooid.predictor.equations.link_fit import shared_bytes_per_s

AllReduce: TypeAlias = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], Array]
"""(bytes, members, bytes/s of each, latency) to seconds."""


def three_phase_s(
    num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0
) -> Array:
    """LambdaML's scatter-reduce through a store: 3s/w − 2s/(nw) + 4l (FuncPipe (1)).

    >>> float(three_phase_s(280e6, 8, 70e6))
    11.0
    """
    s, n, w, lat = _checked(num_bytes, num_members, bytes_per_s, latency_s)
    return where(n > 1, 3 * s / w - 2 * s / (n * w) + 4 * lat)


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
    """The least that any all-reduce takes, which zooid's `streaming` comes near to: 2s(n−1)/(nw), everybody's downlink.

    Latency does not count: chunks hide all but that of the first and the last.

    >>> float(streaming_bound_s(280e6, 8, 70e6))
    7.0
    """
    s, n, w, _ = _checked(num_bytes, num_members, bytes_per_s, latency_s)
    return 2 * s * (n - 1) / (n * w)


def ring_s(
    num_bytes: ArrayLike,
    num_members: ArrayLike,
    bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    s_per_byte: ArrayLike = 0.0,
) -> Array:
    """Around a ring: 2(n−1) rounds of s/n bytes, each (s/n)/w + α(s/n) + β (Hydrozoa §3.4, T^(D)).

    The paper prints the number of shards where that of replicas is meant, and half of the rounds. `s_per_byte` is α,
    `latency_s` is β: see `fit_link`.

    >>> float(ring_s(280e6, 8, 70e6, 0.5))
    14.0
    """
    s, n, w, lat = _checked(num_bytes, num_members, bytes_per_s, latency_s)
    part = s / n
    return 2 * (n - 1) * (part / w + at_least(0, "s_per_byte", s_per_byte) * part + lat)


def averaging_s(
    num_bytes: ArrayLike,
    num_members: ArrayLike,
    stream_bytes_per_s: ArrayLike,
    link_bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    streams_per_pair: ArrayLike = 1,
) -> Array:
    """Everyone with everyone, directly, over long links: 2s(n−1)/n bytes out of each member over k(n−1) streams.

    With r bytes/s for a stream and C for a member's link: 2s(n−1)/n / min(k(n−1)r, C) + 2l. While streams are the
    limit that is 2s/(nkr) + 2l: it falls with more peers, as clouds and continents §7 found.

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
    """By site: reduce inside, exchange between sites, spread inside (`schedule.collectives.hierarchical`).

    The last axis of `site_sizes`, `inside_bytes_per_s` (w, of each member) and `between_bytes_per_s` (C, of a site to
    the others over all its streams) is the site; a site of size 0 is none. For G sites, of n members each:

        inside, twice:   s(n−1)/n / w       slowest site
        between, twice:  s(G−1)/G / min(C, nw)
        latencies:       2 l inside, 2 l between

    In one chunk these follow one another. In K chunks they overlap: Σ/K + (1 − 1/K) · max of what the busiest member's
    link, 2s(N−1)/N / w with N = nG, and the busiest site's, 2s(G−1)/G / C, have to carry. With one site that is the
    bound of a ring among its members.

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
    members = np.maximum(n, 1)  # of a site that is none, so that nothing is divided by 0
    inside = s * (members - 1) / (members * w)
    crossing = where(n > 0, s * (num_sites - 1) / num_sites)
    between = crossing / np.minimum(c, members * w)
    phases = 2 * (inside.max(axis=-1) + between.max(axis=-1))
    busiest_member = (2 * inside + 2 * crossing / (members * w)).max(axis=-1)
    busiest_site = (2 * crossing / c).max(axis=-1)
    moved: Array = phases / chunks + (1 - 1 / chunks) * np.maximum(busiest_member, busiest_site)
    has_crew, is_wide = (n > 1).any(axis=-1), num_sites[..., 0] > 1
    latency = has_crew * at_least(0, "inside_latency_s", inside_latency_s)
    return moved + 2 * (latency + is_wide * at_least(0, "between_latency_s", between_latency_s))


def _checked(
    num_bytes: ArrayLike, num_members: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    return (
        at_least(0, "num_bytes", num_bytes),
        at_least(1, "num_members", num_members),
        above_zero("bytes_per_s", bytes_per_s),
        at_least(0, "latency_s", latency_s),
    )
