"""Time and cost of many choices at once, from the closed forms: what the search minimises, and nothing else is.

round = batch / Σ speeds + averaging(members at each site)
cost  = rounds · (round · Σ prices + Σ bytes of each way · its price)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.sites.problem import Averaging, SiteChoice, SiteCount, SiteProblem, WayUse
from zooid.predictor.equations.array_checks import Array
from zooid.predictor.equations.site_rounds import (
    SiteLinks,
    by_site_bytes,
    by_site_s,
    everyone_bytes,
    everyone_s,
    streams_of_everyone,
    streams_of_sites,
    through_hub_bytes,
    through_hub_s,
)

EVERYONE, BY_SITE, FIRST_HUB = 0, 1, 2
"""How gradients meet, as numbers: FIRST_HUB + i is through site i."""

Counts = NDArray[np.int64]
"""Members on each offer, the last axis; one row for each choice."""


@dataclass(frozen=True)
class Totals:
    """Of several choices: seconds of a round, dollars of the run."""

    compute_s: Array
    averaging_s: Array
    compute_usd: Array
    egress_usd: Array
    num_rounds: int

    @property
    def time_s(self) -> Array:
        return self.num_rounds * (self.compute_s + self.averaging_s)

    @property
    def usd(self) -> Array:
        return self.compute_usd + self.egress_usd


class Model:
    """A problem as arrays."""

    def __init__(self, problem: SiteProblem) -> None:
        self.problem = problem
        self.sites = problem.sites
        num_sites = len(self.sites)
        place = {site: at for at, site in enumerate(self.sites)}
        self.speed = np.array([offer.samples_per_s for offer in problem.offers])
        self.usd_per_s = np.array([offer.usd_per_hour for offer in problem.offers]) / SECONDS_PER_HOUR
        self.most = np.array([offer.most for offer in problem.offers], np.int64)
        self.most_members = min(problem.most_members or math.inf, int(self.most.sum()))
        self.is_at = np.zeros((len(problem.offers), num_sites), np.int64)
        for at, offer in enumerate(problem.offers):
            self.is_at[at, place[offer.site]] = 1
        self.usd_per_byte = np.zeros((num_sites, num_sites))
        for price in problem.egress:
            if {price.from_site, price.to_site} <= place.keys():
                self.usd_per_byte[place[price.from_site], place[price.to_site]] = price.usd_per_gb / 1e9
        self.links = _site_links(problem, place)
        self.methods = [EVERYONE] * ("everyone" in problem.averagings) + [BY_SITE] * ("by_site" in problem.averagings)
        if "hub" in problem.averagings and num_sites > 2:  # of two sites, one as a hub only does things twice
            self.methods += [FIRST_HUB + at for at in range(num_sites)]

    def streams(self, sizes: Array, method: int) -> Array:
        find = streams_of_everyone if method == EVERYONE else streams_of_sites
        return find(sizes, self.links, self.problem.most_streams, self.problem.stream_slack)

    def num_bytes(self, sizes: Array, method: int) -> Array:
        """Of one round, from each site to each."""
        size = self.problem.gradient_bytes
        if method == EVERYONE:
            return everyone_bytes(size, sizes)
        return by_site_bytes(size, sizes) if method == BY_SITE else through_hub_bytes(size, sizes, method - FIRST_HUB)

    def averaging_s(self, sizes: Array, method: int) -> Array:
        size, streams, chunks = self.problem.gradient_bytes, self.streams(sizes, method), self.problem.num_chunks
        if method == EVERYONE:
            return everyone_s(size, sizes, self.links, streams)
        if method == BY_SITE:
            return by_site_s(size, sizes, self.links, streams, chunks)
        hub = method - FIRST_HUB
        has_hub = sizes[..., hub] > 0
        at_hub = sizes + (np.arange(len(self.sites)) == hub) * ~has_hub[..., None]  # so that it can be computed
        return np.where(has_hub, through_hub_s(size, at_hub, hub, self.links, streams, chunks), np.inf)

    def totals(self, counts: Counts, method: int) -> Totals:
        """Every row has at least one member; what cannot be done takes for ever."""
        sizes = (counts @ self.is_at).astype(float)
        compute_s = self.problem.batch_size / (counts @ self.speed)
        averaging_s = self.averaging_s(sizes, method)
        rounds = self.problem.num_rounds
        round_s, per_s = compute_s + averaging_s, counts @ self.usd_per_s
        # what is free stays free, even where it takes for ever
        compute_usd = rounds * np.multiply(round_s, per_s, out=np.zeros(len(counts)), where=per_s > 0)
        egress_usd = rounds * (self.num_bytes(sizes, method) * self.usd_per_byte).sum(axis=(-1, -2))
        return Totals(compute_s, averaging_s, compute_usd, egress_usd, rounds)

    def method(self, averaging: Averaging, hub: str | None = None) -> int:
        """As a number."""
        if hub is not None:
            return FIRST_HUB + self.sites.index(hub)
        return EVERYONE if averaging == "everyone" else BY_SITE

    def counts(self, num_members: Mapping[str, int]) -> Counts:
        """As a row, from the offers' names."""
        return np.array([num_members.get(offer.name, 0) for offer in self.problem.offers], np.int64)

    def choice(self, counts: Counts, method: int) -> SiteChoice:
        """One of them, in full."""
        problem = self.problem
        totals = self.totals(counts[None], method)
        sizes = (counts @ self.is_at).astype(float)
        sent, streams = self.num_bytes(sizes, method), self.streams(sizes, method)
        rounds = problem.num_rounds
        return SiteChoice(
            counts=tuple(
                SiteCount(offer=offer.name, site=offer.site, num_members=int(count))
                for offer, count in zip(problem.offers, counts, strict=True)
                if count
            ),
            averaging="everyone" if method == EVERYONE else "by_site" if method == BY_SITE else "hub",
            hub=self.sites[method - FIRST_HUB] if method >= FIRST_HUB else None,
            ways=tuple(
                WayUse(
                    from_site=self.sites[a],
                    to_site=self.sites[b],
                    num_streams=int(streams[a, b]),
                    num_bytes=float(rounds * sent[a, b]),
                    usd=float(rounds * sent[a, b] * self.usd_per_byte[a, b]),
                )
                for a, b in np.argwhere(sent > 0).tolist()
            ),
            compute_s=float(totals.compute_s[0]),
            averaging_s=float(totals.averaging_s[0]),
            num_rounds=rounds,
            batch_size=problem.batch_size,
            compute_usd=float(totals.compute_usd[0]),
            egress_usd=float(totals.egress_usd[0]),
        )


def _site_links(problem: SiteProblem, place: dict[str, int]) -> SiteLinks:
    shape = (len(place), len(place))
    stream, link, latency = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    given = {(each.from_site, each.to_site): each for each in problem.links}
    for (source, target), row in given.items():
        if {source, target} <= place.keys():
            ends = [(place[source], place[target])]
            if (target, source) not in given:
                ends.append((place[target], place[source]))
            for at in ends:
                link[at] = row.bandwidth_bytes_per_s
                stream[at] = min(row.stream_bytes_per_s or link[at], link[at])
                latency[at] = row.rtt_s / 2
    uplinks = np.full(len(place), np.inf)
    for each in problem.uplinks:
        if each.site in place:
            uplinks[place[each.site]] = each.bytes_per_s
    return SiteLinks(stream, link, latency, uplinks)
