"""How long an all-reduce takes that goes through one site, where the others reach it better than one another."""

import numpy as np
from numpy.typing import ArrayLike

from zooid.predictor.equations.array_checks import Array, above_zero, at_least, where


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
    """Reduce inside, send the site's sum to the hub, take the whole sum back, spread inside (clouds and continents §4:
    "the averaging was done over the US node").

    The last axis of `site_sizes`, `inside_bytes_per_s` (w, of each member) and of both ways (c, of a site to or from
    the hub over all its streams) is the site; a site of size 0 is none. What the hub's own place in the ways says is
    what it takes, or gives, altogether. For G sites, of n members each:

        inside, twice:    s(n−1)/n / w                slowest site
        to the hub:       s / min(c, nw)              slowest site
                          s(G−1) / min(c, nw)         the hub itself
        from the hub:     the same with the other way
        latencies:        2 l inside, 2 l between

    In K chunks these overlap as they do by site (`hierarchical_s`): Σ/K + (1 − 1/K) · max of what the busiest member's
    link, 2s(n−1)/n / w + s/(nw), at the hub + s(G−1)/(nw), and the busiest way have to carry.

    >>> float(hub_s(1e9, [1, 1, 1], 0, 1e9, [1e9, 0.1e9, 0.2e9], [1e9, 0.1e9, 0.2e9]))
    20.0
    >>> float(hub_s(1e9, [1, 1, 1], 0, 1e9, [0.1e9, 0.1e9, 0.2e9], [1e9, 0.1e9, 0.2e9]))
    30.0
    """
    s = at_least(0, "num_bytes", num_bytes)[..., None]
    n = at_least(0, "site_sizes", site_sizes)
    at_least(1, "size of the hub", n[..., hub])
    w = above_zero("inside_bytes_per_s", inside_bytes_per_s)
    ways = [above_zero("to_hub_bytes_per_s", to_hub_bytes_per_s)]
    ways += [above_zero("from_hub_bytes_per_s", from_hub_bytes_per_s)]
    chunks = at_least(1, "num_chunks", num_chunks)
    num_others = np.sum(n > 0, axis=-1)[..., None] - 1
    members = np.maximum(n, 1)  # of a site that is none, so that nothing is divided by 0
    is_hub = np.arange(n.shape[-1]) == hub
    inside = s * (members - 1) / (members * w)
    crossing = where((n > 0) & (num_others > 0), s * np.where(is_hub, num_others, 1))
    between = [(crossing / np.minimum(way, members * w)).max(axis=-1) for way in ways]
    phases = 2 * inside.max(axis=-1) + between[0] + between[1]
    busiest_member = (2 * inside + crossing / (members * w)).max(axis=-1)
    busiest_way = np.maximum(*((crossing / way).max(axis=-1) for way in ways))
    moved: Array = phases / chunks + (1 - 1 / chunks) * np.maximum(busiest_member, busiest_way)
    has_crew, is_wide = (n > 1).any(axis=-1), num_others[..., 0] > 0
    latency = has_crew * at_least(0, "inside_latency_s", inside_latency_s)
    waited: Array = 2 * (latency + is_wide * at_least(0, "between_latency_s", between_latency_s))
    return moved + waited
