"""The answer of a search between sites: members at each site, their averaging, and the time and cost of the run."""

import numpy as np

from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.planner.front import Ints
from zooid.planner.sites.arrays import BY_SITE, EVERYONE, FIRST_HUB, SiteArrays
from zooid.planner.sites.problem import Averaging


class SiteCount(Record, frozen=True, kw_only=True):
    """The number of members on one offer."""

    offer: str
    site: str
    num_members: int


class LinkUse(Record, frozen=True, kw_only=True):
    """The traffic of the run from one site to another, or inside one site."""

    from_site: str
    to_site: str
    num_streams: int
    """The number of streams between each two members that exchange."""
    num_bytes: float
    usd: float


class SiteChoice(Record, frozen=True, kw_only=True):
    """Members with one averaging, and the time and cost of the run."""

    counts: tuple[SiteCount, ...]
    averaging: Averaging
    hub: str | None
    links: tuple[LinkUse, ...]
    compute_s: float
    """The compute time of one round."""
    averaging_s: float
    """The averaging time of one round."""
    num_rounds: int
    compute_usd: float
    """The cost of the members for the whole run."""
    egress_usd: float
    """The cost of the traffic of the whole run."""

    @property
    def time_s(self) -> float:
        return self.num_rounds * (self.compute_s + self.averaging_s)

    @property
    def usd(self) -> float:
        return self.compute_usd + self.egress_usd


class SiteFront(Record, frozen=True, kw_only=True):
    """All choices that no other dominates in time and cost, fastest first."""

    choices: tuple[SiteChoice, ...]
    proof: Proof


def make_choice(arrays: SiteArrays, counts: Ints, method: int) -> SiteChoice:
    """Return the record of one row of counts with one averaging method."""
    problem, sites, rounds = arrays.problem, arrays.sites, arrays.problem.num_rounds
    totals = arrays.totals(counts[None], method)
    sizes = (counts @ arrays.is_at).astype(float)
    num_bytes, streams = rounds * arrays.num_bytes(sizes, method), arrays.streams(sizes, method)
    return SiteChoice(
        counts=tuple(
            SiteCount(offer=offer.name, site=offer.site, num_members=int(count))
            for offer, count in zip(problem.offers, counts, strict=True)
            if count
        ),
        averaging="everyone" if method == EVERYONE else "by_site" if method == BY_SITE else "hub",
        hub=sites[method - FIRST_HUB] if method >= FIRST_HUB else None,
        links=tuple(
            LinkUse(
                from_site=sites[a],
                to_site=sites[b],
                num_streams=int(streams[a, b]),
                num_bytes=float(num_bytes[a, b]),
                usd=float(num_bytes[a, b] * arrays.usd_per_byte[a, b]),
            )
            for a, b in np.argwhere(num_bytes > 0).tolist()
        ),
        compute_s=float(totals.compute_s[0]),
        averaging_s=float(totals.averaging_s[0]),
        num_rounds=rounds,
        compute_usd=float(totals.compute_usd[0]),
        egress_usd=float(totals.egress_usd[0]),
    )
