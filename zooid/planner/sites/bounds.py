"""What no choice in a box can beat: least time and least cost over ranges of members.

A box is a range of counts for every offer, a way of averaging, and which sites are taken for certain. Each term of the
closed forms rises or falls with the members of a site, so that it is least at an end of its range; a sum is at least
the sum of the least terms. Where a box is a single choice, the search takes the closed forms themselves.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zooid.planner.sites.model import BY_SITE, EVERYONE, FIRST_HUB, Counts, Model
from zooid.predictor.equations.array_checks import Array


@dataclass(frozen=True)
class Boxes:
    """Several boxes, one in each row."""

    low: Counts
    high: Counts
    is_used: NDArray[np.bool_]
    """Sites that have at least one member for certain."""
    method: NDArray[np.int64]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "Boxes":
        return Boxes(self.low[rows], self.high[rows], self.is_used[rows], self.method[rows])

    @staticmethod
    def join(parts: list["Boxes"]) -> "Boxes":
        return Boxes(
            np.concatenate([each.low for each in parts]),
            np.concatenate([each.high for each in parts]),
            np.concatenate([each.is_used for each in parts]),
            np.concatenate([each.method for each in parts]),
        )

    def __len__(self) -> int:
        return len(self.method)


@dataclass(frozen=True)
class _Sizes:
    """Members at sites, at least and at most; the shape is (boxes, sites)."""

    low: Array
    high: Array
    num_used: Array
    """Sites at least and at most, of each box."""
    num_sites: Array
    most: Array
    """Members of all sites, at most."""


_NEVER_S = 1e30
"""For a byte, where there is no way: finite, so that it may be multiplied by 0."""


def _per_byte(bytes_per_s: Array) -> Array:
    seconds: Array = np.full(bytes_per_s.shape, _NEVER_S)
    np.divide(1.0, bytes_per_s, out=seconds, where=bytes_per_s > 0)
    return seconds


class Bounds:
    """Of one model; matrices that all boxes share are made once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        links = model.links
        self._stream = _per_byte(links.stream_bytes_per_s * model.problem.most_streams)
        self._link = _per_byte(links.link_bytes_per_s)
        self._own = 1 / links.members_bytes_per_s
        self._uplink = 1 / links.uplink_bytes_per_s
        self._inside = np.eye(links.num_sites, dtype=bool)
        self._by_speed = np.argsort(-model.speed, kind="stable")
        self._by_value = np.argsort(model.usd_per_s / model.speed, kind="stable")

    def of(self, boxes: Boxes) -> tuple[Array, Array]:
        """Seconds and dollars of the run that no choice in each box goes below; infinite where none can be done."""
        model, rounds = self._model, self._model.problem.num_rounds
        sizes = self._sizes(boxes)
        averaging_s, egress_usd = np.zeros(len(boxes)), np.zeros(len(boxes))
        for method in set(boxes.method.tolist()):
            rows = np.flatnonzero(boxes.method == method)
            part = _Sizes(*(each[rows] for each in vars(sizes).values()))
            least_s = self._averaging_s(part, method)
            averaging_s[rows] = np.where(least_s < _NEVER_S / 1e9, least_s, np.inf)
            egress_usd[rows] = self._egress_usd(part, method)
        batch = model.problem.batch_size
        compute_s = batch / self._samples_per_s(boxes)
        per_s = boxes.low @ model.usd_per_s
        waiting_usd = np.multiply(per_s, averaging_s, out=np.zeros(len(boxes)), where=per_s > 0)
        usd = batch * self._usd_per_sample(boxes) + waiting_usd + egress_usd
        return rounds * (compute_s + averaging_s), rounds * usd

    def _sizes(self, boxes: Boxes) -> _Sizes:
        low = np.maximum(boxes.low @ self._model.is_at, boxes.is_used)
        high = boxes.high @ self._model.is_at
        room = self._model.most_members - (low.sum(axis=1, keepdims=True) - low)
        high = np.minimum(high, np.maximum(room, low))
        most = np.minimum(high.sum(axis=1), self._model.most_members)
        used = np.maximum(boxes.is_used.sum(axis=1), 1)
        return _Sizes(low * 1.0, high * 1.0, used * 1.0, (high > 0).sum(axis=1) * 1.0, most * 1.0)

    def _samples_per_s(self, boxes: Boxes) -> Array:
        """At most: the fewest of all, then the fastest while members are allowed."""
        order, model = self._by_speed, self._model
        extra = (boxes.high - boxes.low)[:, order]
        room = model.most_members - boxes.low.sum(axis=1, keepdims=True)
        before = np.cumsum(extra, axis=1) - extra
        fastest: Array = boxes.low @ model.speed + np.clip(room - before, 0, extra) @ model.speed[order]
        return fastest

    def _usd_per_sample(self, boxes: Boxes) -> Array:
        """Σ prices / Σ speeds is least with the most of the offers that are cheap for their speed, the fewest of the
        others, for some place to draw the line."""
        order, model = self._by_value, self._model
        low, high = boxes.low[:, order], boxes.high[:, order]
        best = np.full(len(boxes), np.inf)
        for line in range(len(order) + 1):
            counts = np.concatenate([high[:, :line], low[:, line:]], axis=1)
            speed, price = counts @ model.speed[order], counts @ model.usd_per_s[order]
            best = np.minimum(best, np.divide(price, speed, out=np.full(len(boxes), np.inf), where=speed > 0))
        return np.where(np.isfinite(best), best, 0.0)

    def _averaging_s(self, n: _Sizes, method: int) -> Array:
        if method == EVERYONE:
            return self._everyone_s(n)
        inside = self._inside_s(n)
        way, interface = self._between_s(n) if method == BY_SITE else self._hub_s(n, method - FIRST_HUB)
        phases = 2 * inside.max(axis=1) + np.maximum(way, 2 * interface).max(axis=1)
        at_once = 2 if method == BY_SITE else 1  # what a hub takes and gives goes both ways at the same time
        busiest = np.maximum((2 * inside + at_once * interface).max(axis=1), at_once / 2 * way.max(axis=1))
        chunks = self._model.problem.num_chunks
        apart = self._apart(n) if method == BY_SITE else self._apart(n) & self._touches(method - FIRST_HUB)
        least: Array = phases / chunks + (1 - 1 / chunks) * busiest + self._latency_s(n, apart)
        return least

    def _everyone_s(self, n: _Sizes) -> Array:
        s = self._model.problem.gradient_bytes
        apart, crew = self._apart(n), n.low > 1
        used = apart | (crew[:, :, None] & self._inside)
        slowest = np.where(used, self._stream, 0.0).max(axis=(1, 2)) / n.most
        peers = np.where(used, n.low[:, None, :] - self._inside, 0.0)
        link = np.where(used, self._link, 0.0)
        load = np.maximum((peers * link).sum(axis=2), (peers * np.swapaxes(link, 1, 2)).sum(axis=2))
        others = n.low.sum(axis=1, keepdims=True) - n.low
        ratio = n.low * others / np.maximum(n.low + others, 1)
        shared = np.maximum(load.max(axis=1) / n.most, (ratio * self._uplink).max(axis=1))
        fewest = np.maximum(n.low.sum(axis=1, keepdims=True), 1)
        interface = (n.low > 0) * self._own * (fewest - 1) / fewest
        shared = np.maximum(shared, interface.max(axis=1))
        least: Array = 2 * s * np.maximum(slowest, shared) + self._latency_s(n, apart)
        return least

    def _inside_s(self, n: _Sizes) -> Array:
        """Of one of the two phases inside each site."""
        s = self._model.problem.gradient_bytes
        stream, link = np.diagonal(self._stream), np.diagonal(self._link)
        crew = n.low > 1
        lone = np.where(crew, stream, 0.0) / np.maximum(n.high, 1)
        return s * np.maximum(lone, np.where(crew, link, 0.0) * (n.low - 1) / np.maximum(n.low, 1))

    def _between_s(self, n: _Sizes) -> tuple[Array, Array]:
        """Both phases between sites: what each site's ways take, and one phase of what its members' interfaces do."""
        s = self._model.problem.gradient_bytes
        apart = self._apart(n)
        pairs = np.maximum(np.maximum(n.high[:, :, None], n.high[:, None, :]), 1)
        slowest = np.where(apart, self._stream / pairs, 0.0).max(axis=2) / n.num_sites[:, None]
        link = np.where(apart, self._link, 0.0)
        members = np.maximum(n.high, 1)
        load = np.maximum(link.sum(axis=2), np.swapaxes(link, 1, 2).sum(axis=2)) / members / n.num_sites[:, None]
        part = np.where(apart.any(axis=2), ((n.num_used - 1) / n.num_used)[:, None], 0.0)
        way = np.maximum(np.maximum(slowest, load), part * self._uplink)
        return 2 * s * way, s * part * self._own / members

    def _hub_s(self, n: _Sizes, hub: int) -> tuple[Array, Array]:
        """The two ways together, and what interfaces take each way."""
        s = self._model.problem.gradient_bytes
        is_hub = np.arange(n.low.shape[1]) == hub
        other = (n.low > 0) & ~is_hub & (n.low[:, hub, None] > 0)
        members = np.maximum(n.high, 1)
        here = members[:, hub, None]
        both = np.zeros(n.low.shape)
        num_others = other.sum(axis=1, keepdims=True)
        for stream, link in (
            (self._stream[:, hub], self._link[:, hub]),
            (self._stream[hub], self._link[hub]),
        ):
            own = np.maximum(
                np.where(other, stream, 0.0) / np.maximum(members, here),
                np.where(other, link, 0.0) / np.minimum(members, here),
            )
            own = np.maximum(own, other * self._uplink)
            whole = np.where(other, link, 0.0).sum(axis=1, keepdims=True) / here
            whole = np.maximum(whole, num_others * self._uplink[hub])
            both += np.where(is_hub, whole, own)
        return s * both, s * np.where(is_hub, num_others, other) * self._own / members

    def _egress_usd(self, n: _Sizes, method: int) -> Array:
        s, price = self._model.problem.gradient_bytes, self._model.usd_per_byte
        apart = self._apart(n)
        if method == EVERYONE:
            a, b = n.low[:, :, None], n.low[:, None, :]
            pair = np.where(self._inside, a, a + b)
            ends = np.where(self._inside, n.high[:, :, None], n.high[:, :, None] + n.high[:, None, :])
            # n·m / N rises with both ends and falls with the others: the fewest of those, the most of these
            rest = np.minimum(n.high.sum(axis=1)[:, None, None] - ends, n.most[:, None, None] - pair)
            product = np.where(self._inside, a * np.maximum(b - 1, 0), a * b)
            flat: Array = 2 * s * (product / np.maximum(pair + np.maximum(rest, 0), 1) * price).sum(axis=(1, 2))
            return flat
        inside: Array = 2 * s * (np.maximum(n.low - 1, 0) * np.diagonal(price)).sum(axis=1)
        if method == BY_SITE:
            exchanged: Array = 2 * s * np.where(apart, price, 0.0).sum(axis=(1, 2)) / n.num_sites
            return inside + exchanged
        between: Array = np.where(apart & self._touches(method - FIRST_HUB), price, 0.0).sum(axis=(1, 2))
        return inside + s * between

    def _latency_s(self, n: _Sizes, apart: NDArray[np.bool_]) -> Array:
        latency = self._model.links.latency_s
        longest: Array = 2 * np.where(apart, latency, 0.0).max(axis=(1, 2))
        return longest

    def _apart(self, n: _Sizes) -> NDArray[np.bool_]:
        """Pairs of different sites that both have members for certain."""
        both: NDArray[np.bool_] = (n.low[:, :, None] > 0) & (n.low[:, None, :] > 0) & ~self._inside
        return both

    def _touches(self, hub: int) -> NDArray[np.bool_]:
        at = np.arange(len(self._inside)) == hub
        touched: NDArray[np.bool_] = at[:, None] | at[None, :]
        return touched
