"""A problem between sites as arrays, which evaluate the closed forms for many choices at once.

round = batch / Σ speeds + averaging(members at each site)
cost  = rounds · (round · Σ prices + Σ bytes of each link · its price)
"""

import math
from dataclasses import dataclass

import numpy as np

from zooid.core.units import SECONDS_PER_HOUR
from zooid.planner.front import Ints
from zooid.planner.sites.problem import SiteProblem
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
"""Averaging methods as numbers: FIRST_HUB + i is the hub at site i."""


@dataclass(frozen=True)
class SiteTotals:
    """Seconds of one round and dollars of the run, one number for each choice."""

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


class SiteArrays:
    """One number for each offer or site. Choices are rows of counts, with one count for each offer."""

    def __init__(self, problem: SiteProblem) -> None:
        self.problem = problem
        self.sites = problem.sites
        num_sites = len(self.sites)
        index_of = {site: index for index, site in enumerate(self.sites)}
        self.speed = np.array([offer.samples_per_s for offer in problem.offers])
        self.usd_per_s = np.array([offer.usd_per_hour for offer in problem.offers]) / SECONDS_PER_HOUR
        self.max_counts = np.array([offer.max_members for offer in problem.offers], np.int64)
        self.max_members = min(problem.max_members or math.inf, int(self.max_counts.sum()))
        self.is_at = np.zeros((len(problem.offers), num_sites), np.int64)
        """[offer, site]: 1 where the offer is at the site, so that counts @ is_at are the members of each site."""
        for row, offer in enumerate(problem.offers):
            self.is_at[row, index_of[offer.site]] = 1
        self.usd_per_byte = np.zeros((num_sites, num_sites))
        for price in problem.egress:
            if {price.from_site, price.to_site} <= index_of.keys():
                self.usd_per_byte[index_of[price.from_site], index_of[price.to_site]] = price.usd_per_gb / 1e9
        self.links = _site_links(problem, index_of)
        self.methods = [EVERYONE] * ("everyone" in problem.averagings) + [BY_SITE] * ("by_site" in problem.averagings)
        if "hub" in problem.averagings and num_sites > 2:  # a hub of two sites only does the same work twice
            self.methods += [FIRST_HUB + hub for hub in range(num_sites)]

    def streams(self, sizes: Array, method: int) -> Array:
        """Return the number of streams for each pair of members, from each site to each site."""
        streams_of = streams_of_everyone if method == EVERYONE else streams_of_sites
        return streams_of(sizes, self.links, self.problem.max_streams, self.problem.stream_slack)

    def num_bytes(self, sizes: Array, method: int) -> Array:
        """Return the bytes of one round from each site to each site."""
        num_bytes = self.problem.gradient_bytes
        if method == EVERYONE:
            return everyone_bytes(num_bytes, sizes)
        if method == BY_SITE:
            return by_site_bytes(num_bytes, sizes)
        return through_hub_bytes(num_bytes, sizes, method - FIRST_HUB)

    def totals(self, counts: Ints, method: int) -> SiteTotals:
        """Return times and costs of choices with at least one member each; infeasible choices take infinite time."""
        sizes = (counts @ self.is_at).astype(float)
        compute_s = self.problem.batch_size / (counts @ self.speed)
        averaging_s = self._averaging_s(sizes, method)
        rounds = self.problem.num_rounds
        round_s, usd_per_s = compute_s + averaging_s, counts @ self.usd_per_s
        # members that cost nothing cost nothing even for an infinite time
        compute_usd = rounds * np.multiply(round_s, usd_per_s, out=np.zeros(len(counts)), where=usd_per_s > 0)
        egress_usd = rounds * (self.num_bytes(sizes, method) * self.usd_per_byte).sum(axis=(-1, -2))
        return SiteTotals(compute_s, averaging_s, compute_usd, egress_usd, rounds)

    def _averaging_s(self, sizes: Array, method: int) -> Array:
        num_bytes, num_chunks = self.problem.gradient_bytes, self.problem.num_chunks
        streams = self.streams(sizes, method)
        if method == EVERYONE:
            return everyone_s(num_bytes, sizes, self.links, streams)
        if method == BY_SITE:
            return by_site_s(num_bytes, sizes, self.links, streams, num_chunks)
        hub = method - FIRST_HUB
        has_hub = sizes[..., hub] > 0
        # the closed form needs a member at the hub
        with_hub = sizes + (np.arange(len(self.sites)) == hub) * ~has_hub[..., None]
        return np.where(has_hub, through_hub_s(num_bytes, with_hub, hub, self.links, streams, num_chunks), np.inf)


def _site_links(problem: SiteProblem, index_of: dict[str, int]) -> SiteLinks:
    shape = (len(index_of), len(index_of))
    stream, link, latency = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    measured = {(row.from_site, row.to_site): row for row in problem.links}
    for (source, target), row in measured.items():
        if {source, target} <= index_of.keys():
            cells = [(index_of[source], index_of[target])]
            if (target, source) not in measured:
                cells.append((index_of[target], index_of[source]))
            for cell in cells:
                link[cell] = row.bandwidth_bytes_per_s
                stream[cell] = min(row.stream_bytes_per_s or link[cell], link[cell])
                latency[cell] = row.rtt_s / 2
    uplinks = np.full(len(index_of), np.inf)
    for uplink in problem.uplinks:
        if uplink.site in index_of:
            uplinks[index_of[uplink.site]] = uplink.bytes_per_s
    return SiteLinks(stream, link, latency, uplinks)
