"""Lower bounds of the time and cost of all choices in a box.

A box is a range of counts for every offer, an averaging method, and the sites that are certainly used. Each term of the
closed forms is monotone in the members of a site, so that it is least at an end of its range. A sum is at least the sum
of the least terms. A box of a single choice needs no bound: the search evaluates the closed forms themselves.
"""

from dataclasses import dataclass

import numpy as np

from zooid.planner.front import Ints, Mask
from zooid.planner.sites.arrays import BY_SITE, EVERYONE, FIRST_HUB, SiteArrays
from zooid.predictor.equations.array_checks import Array

_NEVER_S = 1e30
"""Seconds for a byte where there is no link: finite, so that it may be multiplied by 0."""


@dataclass(frozen=True)
class Boxes:
    """Several boxes, one in each row."""

    low: Ints
    high: Ints
    is_used: Mask
    """Whether each site has certainly at least one member."""
    method: Ints

    def take(self, rows: Ints | Mask) -> "Boxes":
        return Boxes(self.low[rows], self.high[rows], self.is_used[rows], self.method[rows])

    @staticmethod
    def join(parts: list["Boxes"]) -> "Boxes":
        return Boxes(
            np.concatenate([part.low for part in parts]),
            np.concatenate([part.high for part in parts]),
            np.concatenate([part.is_used for part in parts]),
            np.concatenate([part.method for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.method)


@dataclass(frozen=True)
class _Sizes:
    """Ranges of the number of members at each site, of shape (boxes, sites)."""

    low: Array
    high: Array
    min_sites: Array
    """The smallest number of sites used in each box."""
    max_sites: Array
    max_members: Array
    """The largest number of members at all sites of each box."""


class SiteBounds:
    """The bounds of one problem. Matrices that all boxes share are made once."""

    def __init__(self, arrays: SiteArrays) -> None:
        self._arrays = arrays
        links = arrays.links
        self._stream = _seconds_per_byte(links.stream_bytes_per_s * arrays.problem.max_streams)
        self._link = _seconds_per_byte(links.link_bytes_per_s)
        self._interface = 1 / links.members_bytes_per_s
        self._uplink = 1 / links.uplink_bytes_per_s
        self._is_inside = np.eye(links.num_sites, dtype=bool)
        self._by_speed = np.argsort(-arrays.speed, kind="stable")
        self._by_value = np.argsort(arrays.usd_per_s / arrays.speed, kind="stable")

    def of(self, boxes: Boxes) -> tuple[Array, Array]:
        """Return lower bounds of the run's seconds and dollars; the seconds are infinite for an infeasible box."""
        arrays, rounds = self._arrays, self._arrays.problem.num_rounds
        sizes = self._sizes(boxes)
        averaging_s, egress_usd = np.zeros(len(boxes)), np.zeros(len(boxes))
        for method in set(boxes.method.tolist()):
            rows = np.flatnonzero(boxes.method == method)
            method_sizes = _Sizes(*(values[rows] for values in vars(sizes).values()))
            method_s = self._averaging_s(method_sizes, method)
            averaging_s[rows] = np.where(method_s < _NEVER_S / 1e9, method_s, np.inf)
            egress_usd[rows] = self._egress_usd(method_sizes, method)
        batch = arrays.problem.batch_size
        compute_s = batch / self._samples_per_s(boxes)
        usd_per_s = boxes.low @ arrays.usd_per_s
        averaging_usd = np.multiply(usd_per_s, averaging_s, out=np.zeros(len(boxes)), where=usd_per_s > 0)
        usd = batch * self._usd_per_sample(boxes) + averaging_usd + egress_usd
        return rounds * (compute_s + averaging_s), rounds * usd

    def _sizes(self, boxes: Boxes) -> _Sizes:
        low = np.maximum(boxes.low @ self._arrays.is_at, boxes.is_used)
        high = boxes.high @ self._arrays.is_at
        room = self._arrays.max_members - (low.sum(axis=1, keepdims=True) - low)
        high = np.minimum(high, np.maximum(room, low))
        max_members = np.minimum(high.sum(axis=1), self._arrays.max_members)
        min_sites = np.maximum(boxes.is_used.sum(axis=1), 1)
        return _Sizes(low * 1.0, high * 1.0, min_sites * 1.0, (high > 0).sum(axis=1) * 1.0, max_members * 1.0)

    def _samples_per_s(self, boxes: Boxes) -> Array:
        """Return the highest speed: the fewest members of all offers, then the fastest while members are allowed."""
        order, arrays = self._by_speed, self._arrays
        extra = (boxes.high - boxes.low)[:, order]
        room = arrays.max_members - boxes.low.sum(axis=1, keepdims=True)
        before = np.cumsum(extra, axis=1) - extra
        fastest: Array = boxes.low @ arrays.speed + np.clip(room - before, 0, extra) @ arrays.speed[order]
        return fastest

    def _usd_per_sample(self, boxes: Boxes) -> Array:
        """Return the least Σ prices / Σ speeds.

        It has the most members of the offers that are cheapest for their speed, and the fewest of all others. Every
        cut point between the two is tried.
        """
        order, arrays = self._by_value, self._arrays
        low, high = boxes.low[:, order], boxes.high[:, order]
        least = np.full(len(boxes), np.inf)
        for cut in range(len(order) + 1):
            counts = np.concatenate([high[:, :cut], low[:, cut:]], axis=1)
            speed, price = counts @ arrays.speed[order], counts @ arrays.usd_per_s[order]
            least = np.minimum(least, np.divide(price, speed, out=np.full(len(boxes), np.inf), where=speed > 0))
        return np.where(np.isfinite(least), least, 0.0)

    def _averaging_s(self, n: _Sizes, method: int) -> Array:
        if method == EVERYONE:
            return self._everyone_s(n)
        inside_s = self._inside_s(n)
        link_s, interface_s = self._between_s(n) if method == BY_SITE else self._hub_s(n, method - FIRST_HUB)
        phases_s = 2 * inside_s.max(axis=1) + np.maximum(link_s, 2 * interface_s).max(axis=1)
        num_phases = 2 if method == BY_SITE else 1  # a hub receives and sends at the same time
        busiest_s = np.maximum(
            (2 * inside_s + num_phases * interface_s).max(axis=1), num_phases / 2 * link_s.max(axis=1)
        )
        chunks = self._arrays.problem.num_chunks
        apart = self._apart(n) if method == BY_SITE else self._apart(n) & self._touches(method - FIRST_HUB)
        least_s: Array = phases_s / chunks + (1 - 1 / chunks) * busiest_s + self._latency_s(apart)
        return least_s

    def _everyone_s(self, n: _Sizes) -> Array:
        num_bytes = self._arrays.problem.gradient_bytes
        apart, has_several = self._apart(n), n.low > 1
        is_linked = apart | (has_several[:, :, None] & self._is_inside)
        slowest = np.where(is_linked, self._stream, 0.0).max(axis=(1, 2)) / n.max_members
        peers = np.where(is_linked, n.low[:, None, :] - self._is_inside, 0.0)
        link = np.where(is_linked, self._link, 0.0)
        load = np.maximum((peers * link).sum(axis=2), (peers * np.swapaxes(link, 1, 2)).sum(axis=2))
        others = n.low.sum(axis=1, keepdims=True) - n.low
        ratio = n.low * others / np.maximum(n.low + others, 1)
        shared = np.maximum(load.max(axis=1) / n.max_members, (ratio * self._uplink).max(axis=1))
        fewest = np.maximum(n.low.sum(axis=1, keepdims=True), 1)
        interface = (n.low > 0) * self._interface * (fewest - 1) / fewest
        shared = np.maximum(shared, interface.max(axis=1))
        least_s: Array = 2 * num_bytes * np.maximum(slowest, shared) + self._latency_s(apart)
        return least_s

    def _inside_s(self, n: _Sizes) -> Array:
        """Return the time of one of the two phases inside each site."""
        stream, link = np.diagonal(self._stream), np.diagonal(self._link)
        has_several = n.low > 1
        by_stream = np.where(has_several, stream, 0.0) / np.maximum(n.high, 1)
        by_link = np.where(has_several, link, 0.0) * (n.low - 1) / np.maximum(n.low, 1)
        return self._arrays.problem.gradient_bytes * np.maximum(by_stream, by_link)

    def _between_s(self, n: _Sizes) -> tuple[Array, Array]:
        """Return the time of both phases on each site's links, and of one phase on its members' interfaces."""
        num_bytes = self._arrays.problem.gradient_bytes
        apart = self._apart(n)
        pairs = np.maximum(np.maximum(n.high[:, :, None], n.high[:, None, :]), 1)
        slowest = np.where(apart, self._stream / pairs, 0.0).max(axis=2) / n.max_sites[:, None]
        link = np.where(apart, self._link, 0.0)
        members = np.maximum(n.high, 1)
        load = np.maximum(link.sum(axis=2), np.swapaxes(link, 1, 2).sum(axis=2)) / members / n.max_sites[:, None]
        sent = np.where(apart.any(axis=2), ((n.min_sites - 1) / n.min_sites)[:, None], 0.0)
        busiest = np.maximum(np.maximum(slowest, load), sent * self._uplink)
        return 2 * num_bytes * busiest, num_bytes * sent * self._interface / members

    def _hub_s(self, n: _Sizes, hub: int) -> tuple[Array, Array]:
        """Return the time of both directions on each site's links, and of one direction on its members' interfaces."""
        num_bytes = self._arrays.problem.gradient_bytes
        is_hub = np.arange(n.low.shape[1]) == hub
        is_other = (n.low > 0) & ~is_hub & (n.low[:, hub, None] > 0)
        num_others = is_other.sum(axis=1, keepdims=True)
        members = np.maximum(n.high, 1)
        at_hub = members[:, hub, None]
        both = np.zeros(n.low.shape)
        for stream, link in (
            (self._stream[:, hub], self._link[:, hub]),
            (self._stream[hub], self._link[hub]),
        ):
            of_other = np.maximum(
                np.where(is_other, stream, 0.0) / np.maximum(members, at_hub),
                np.where(is_other, link, 0.0) / np.minimum(members, at_hub),
            )
            of_other = np.maximum(of_other, is_other * self._uplink)
            of_hub = np.where(is_other, link, 0.0).sum(axis=1, keepdims=True) / at_hub
            of_hub = np.maximum(of_hub, num_others * self._uplink[hub])
            both += np.where(is_hub, of_hub, of_other)
        return num_bytes * both, num_bytes * np.where(is_hub, num_others, is_other) * self._interface / members

    def _egress_usd(self, n: _Sizes, method: int) -> Array:
        num_bytes, price = self._arrays.problem.gradient_bytes, self._arrays.usd_per_byte
        apart = self._apart(n)
        if method == EVERYONE:
            a, b = n.low[:, :, None], n.low[:, None, :]
            fewest_ends = np.where(self._is_inside, a, a + b)
            most_ends = np.where(self._is_inside, n.high[:, :, None], n.high[:, :, None] + n.high[:, None, :])
            # n·m / N rises with both ends and falls with the other sites: take the fewest ends and the most others
            others = np.minimum(
                n.high.sum(axis=1)[:, None, None] - most_ends, n.max_members[:, None, None] - fewest_ends
            )
            product = np.where(self._is_inside, a * np.maximum(b - 1, 0), a * b)
            traffic = product / np.maximum(fewest_ends + np.maximum(others, 0), 1)
            everyone_usd: Array = 2 * num_bytes * (traffic * price).sum(axis=(1, 2))
            return everyone_usd
        inside_usd: Array = 2 * num_bytes * (np.maximum(n.low - 1, 0) * np.diagonal(price)).sum(axis=1)
        if method == BY_SITE:
            exchange_usd: Array = 2 * num_bytes * np.where(apart, price, 0.0).sum(axis=(1, 2)) / n.max_sites
            return inside_usd + exchange_usd
        hub_price: Array = np.where(apart & self._touches(method - FIRST_HUB), price, 0.0).sum(axis=(1, 2))
        return inside_usd + num_bytes * hub_price

    def _latency_s(self, apart: Mask) -> Array:
        longest_s: Array = 2 * np.where(apart, self._arrays.links.latency_s, 0.0).max(axis=(1, 2))
        return longest_s

    def _apart(self, n: _Sizes) -> Mask:
        """Return the pairs of different sites that both certainly have members."""
        both: Mask = (n.low[:, :, None] > 0) & (n.low[:, None, :] > 0) & ~self._is_inside
        return both

    def _touches(self, hub: int) -> Mask:
        is_hub = np.arange(len(self._is_inside)) == hub
        return np.asarray(is_hub[:, None] | is_hub[None, :])


def _seconds_per_byte(bytes_per_s: Array) -> Array:
    seconds: Array = np.full(bytes_per_s.shape, _NEVER_S)
    np.divide(1.0, bytes_per_s, out=seconds, where=bytes_per_s > 0)
    return seconds
