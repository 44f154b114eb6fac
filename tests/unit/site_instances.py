"""Small problems between sites, and every choice in them, timed by plain loops over the published formulas."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from zooid.core.resources.link import Link
from zooid.planner.sites import Egress, SiteChoice, SiteOffer, SiteProblem, Uplink
from zooid.planner.sites.answer import make_choice
from zooid.planner.sites.arrays import BY_SITE, EVERYONE, FIRST_HUB, SiteArrays
from zooid.predictor.equations import averaging_s, hierarchical_s, hub_s

Tried: TypeAlias = tuple[tuple[int, ...], float, float]
"""Members on each offer, seconds, dollars."""

rates = st.sampled_from([5e6, 20e6, 100e6, 1e9])


def link(a: str, b: str, bandwidth: float, stream: float | None = None, rtt_s: float = 0.0) -> Link:
    return Link(
        from_site=a,
        to_site=b,
        bandwidth_bytes_per_s=bandwidth,
        stream_bytes_per_s=stream,
        rtt_s=rtt_s,
        source="a test",
        date="2024-01",
    )


def choice_of(
    problem: SiteProblem, num_members: Mapping[str, int], averaging: str = "by_site", hub: str | None = None
) -> SiteChoice:
    """What these members, by the names of their offers, would take and cost."""
    counts = np.array([num_members.get(offer.name, 0) for offer in problem.offers])
    method = EVERYONE if averaging == "everyone" else BY_SITE
    return make_choice(SiteArrays(problem), counts, FIRST_HUB + problem.sites.index(hub) if hub else method)


def num_by_offer(choice: SiteChoice) -> dict[str, int]:
    return {each.offer: each.num_members for each in choice.counts}


@st.composite
def problems(draw: st.DrawFn) -> SiteProblem:
    """Up to 3 offers at up to 3 sites, of up to 3 members: few enough to try all. Some sites have no link."""
    num_sites = draw(st.integers(1, 3))
    sites = "abc"[:num_sites]
    places = [*sites, *draw(st.lists(st.sampled_from(sites), max_size=3 - num_sites))]
    offers = [
        SiteOffer(
            name=f"{site}{at}",
            site=site,
            samples_per_s=draw(st.sampled_from([5.0, 10.0, 40.0])),
            usd_per_hour=draw(st.sampled_from([0.0, 0.2, 0.5, 3.0])),
            max_members=draw(st.integers(1, 3)),
        )
        for at, site in enumerate(places)
    ]
    ways = [(a, b) for a in sites for b in sites if a <= b]
    links = []
    for a, b in ways:
        if a != b and draw(st.integers(0, 4)) == 0:
            continue
        for ends in {(a, b), (b, a)} if draw(st.booleans()) else [(a, b)]:
            stream = draw(st.none() | st.sampled_from([1e6, 5e6, 30e6]))
            links.append(link(*ends, draw(rates), stream, draw(st.sampled_from([0.0, 0.01, 0.3]))))
    prices = st.sampled_from([0.0, 0.01, 0.15])
    return SiteProblem(
        offers=tuple(offers),
        links=tuple(links),
        egress=tuple(Egress(from_site=a, to_site=b, usd_per_gb=draw(prices)) for a in sites for b in sites),
        batch_size=draw(st.sampled_from([10, 1000, 30_000])),
        gradient_bytes=draw(st.sampled_from([1e3, 1e6, 1e9])),
        num_samples=draw(st.integers(1, 100_000)),
        max_members=draw(st.none() | st.integers(1, 9)),
        max_streams=draw(st.sampled_from([1, 4, 64])),
        stream_slack=draw(st.sampled_from([0.0, 0.02])),
        num_chunks=draw(st.sampled_from([1, 8])),
        uplinks=tuple(Uplink(site=site, bytes_per_s=draw(rates)) for site in draw(st.sets(st.sampled_from(sites)))),
    )


class Reference:
    """Plain loops from a problem to the arguments of the published formulas."""

    def __init__(self, problem: SiteProblem) -> None:
        self.problem = problem
        self.links: dict[tuple[str, str], Link] = {}
        for row in problem.links:
            self.links.setdefault((row.to_site, row.from_site), row)
        self.links |= {(row.from_site, row.to_site): row for row in problem.links}
        self.uplinks = {each.site: each.bytes_per_s for each in problem.uplinks}
        self.prices = {(each.from_site, each.to_site): each.usd_per_gb / 1e9 for each in problem.egress}

    def carries(self, ends: tuple[str, str]) -> tuple[float, float]:
        """Of one stream and of one member."""
        row = self.links[ends]
        return min(row.stream_bytes_per_s or math.inf, row.bandwidth_bytes_per_s), row.bandwidth_bytes_per_s

    def streams(self, one: float, capacity: float) -> int:
        best = min(self.problem.max_streams * one, capacity)
        enough = (1 - self.problem.stream_slack) * best * (1 - 1e-12)
        return next(k for k in range(1, self.problem.max_streams + 1) if min(k * one, capacity) >= enough)

    def round(
        self, sizes: dict[str, int], averaging: str, hub: str | None
    ) -> tuple[float, dict[tuple[str, str], float]]:
        """Averaging, and the bytes from each site to each."""
        sites = [site for site, size in sizes.items() if size]
        crews = [(site, site) for site in sites if sizes[site] > 1]
        apart = [(a, b) for a in sites for b in sites if a != b and (hub is None or hub in (a, b))]
        if not {*crews, *apart} <= set(self.links):
            return math.inf, {}
        s = self.problem.gradient_bytes
        if averaging == "everyone":
            return self.everyone(s, sizes, crews + apart)
        width = [self.inside(sizes[site], site) for site in sites]
        latency = max([self.links[ends].rtt_s / 2 for ends in crews], default=0)
        far = max([self.links[ends].rtt_s / 2 for ends in apart], default=0)
        sent = {(site, site): 2 * s * (sizes[site] - 1) for site in sites}
        counts, chunks = [sizes[site] for site in sites], self.problem.num_chunks
        if hub is not None:
            to_hub = [self.at_hub(sizes, sites, site, hub, True) for site in sites]
            from_hub = [self.at_hub(sizes, sites, site, hub, False) for site in sites]
            at = sites.index(hub)
            time_s = float(hub_s(s, counts, at, width, to_hub, from_hub, latency, far, chunks))
            return time_s, sent | dict.fromkeys(apart, s)
        between = [self.of_site(sizes, sites, site) for site in sites]
        time_s = float(hierarchical_s(s, counts, width, between, latency, far, chunks))
        return time_s, sent | {ends: 2 * s / len(sites) for ends in apart}

    def everyone(
        self, s: float, sizes: dict[str, int], ways: list[tuple[str, str]]
    ) -> tuple[float, dict[tuple[str, str], float]]:
        n = sum(sizes.values())
        peers = {(a, b): sizes[b] - (a == b) for a, b in ways}
        times = [0.0]
        for site in {a for a, _ in ways}:
            slowest, leaving, arriving = math.inf, 0.0, 0.0
            for (a, b), count in peers.items():
                if a == site:
                    one, capacity = self.carries((a, b))
                    slowest = min(slowest, one * self.streams(one, capacity / max(count, peers[b, a])))
                    leaving += count / capacity
                    arriving += count / self.carries((b, a))[1]
            shared = sizes[site] * (n - sizes[site]) / self.uplinks.get(site, math.inf)
            own = self.carries((site, site))[1] if (site, site) in self.links else math.inf
            times.append(float(averaging_s(s, n, slowest, min(own, (n - 1) / max(leaving, arriving, shared)))))
        latency = 2 * max([self.links[ends].rtt_s / 2 for ends in ways], default=0)
        return max(times) + latency, {(a, b): 2 * s / n * sizes[a] * count for (a, b), count in peers.items()}

    def inside(self, size: int, site: str) -> float:
        if (site, site) not in self.links:
            return math.inf
        one, capacity = self.carries((site, site))
        return capacity if size == 1 else min(capacity, (size - 1) * one * self.streams((size - 1) * one, capacity))

    def way(self, sizes: dict[str, int], a: str, b: str) -> float:
        """What streams between two sites carry."""
        one, capacity = self.carries((a, b))
        pairs = max(sizes[a], sizes[b])
        return pairs * one * self.streams(pairs * one, min(sizes[a], sizes[b]) * capacity)

    def of_site(self, sizes: dict[str, int], sites: list[str], site: str) -> float:
        others = [other for other in sites if other != site]
        if not others:
            return 1.0
        load = max(1 / self.way(sizes, site, other) for other in others)
        for ends in ([(site, other) for other in others], [(other, site) for other in others]):
            load = max(load, sum(1 / (sizes[site] * self.carries(way)[1]) for way in ends))
        return len(others) / max(load, len(others) / self.uplinks.get(site, math.inf))

    def at_hub(self, sizes: dict[str, int], sites: list[str], site: str, hub: str, is_to: bool) -> float:
        if site != hub:
            ends = (site, hub) if is_to else (hub, site)
            smaller = min(sizes[site], sizes[hub])
            return min(self.way(sizes, *ends), smaller * self.carries(ends)[1], self.uplinks.get(site, math.inf))
        others = [other for other in sites if other != hub]
        ways = [(other, hub) if is_to else (hub, other) for other in others]
        load = sum(1 / (sizes[hub] * self.carries(way)[1]) for way in ways)
        load = max(load, len(others) / self.uplinks.get(hub, math.inf))
        return len(others) / load if others else math.inf

    def all(self) -> Iterator[Tried]:
        """Members, seconds and dollars of every choice that can be done."""
        problem = self.problem
        sites = problem.sites
        methods = [("everyone", None), ("by_site", None), *(("hub", site) for site in sites)]
        for counts in itertools.product(*(range(offer.max_members + 1) for offer in problem.offers)):
            if not 0 < sum(counts) <= (problem.max_members or math.inf):
                continue
            pairs = list(zip(problem.offers, counts, strict=True))
            sizes = {site: sum(count for offer, count in pairs if offer.site == site) for site in sites}
            compute_s = problem.batch_size / sum(offer.samples_per_s * count for offer, count in pairs)
            usd_per_s = sum(offer.usd_per_hour / 3600 * count for offer, count in pairs)
            for averaging, hub in methods:
                if hub is not None and not sizes[hub]:
                    continue
                wire_s, sent = self.round(sizes, averaging, hub)
                if math.isfinite(wire_s):
                    traffic = sum(self.prices[ends] * size for ends, size in sent.items())
                    rounds = math.ceil(problem.num_samples / problem.batch_size)
                    time_s = rounds * (compute_s + wire_s)
                    yield counts, time_s, time_s * usd_per_s + rounds * traffic
