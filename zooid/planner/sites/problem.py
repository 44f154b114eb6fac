"""What is to be decided between sites: members at each, and how their gradients meet; and what an answer says."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from zooid.core.plans.search_result import Proof
from zooid.core.records import Record, require
from zooid.core.resources.link import Link
from zooid.core.resources.offer import MOST_USD_PER_GB, require_price
from zooid.core.resources.prices import Prices
from zooid.core.units import SECONDS_PER_HOUR

SiteGoal = Literal["fastest", "cheapest", "weighted"]
Averaging = Literal["everyone", "by_site", "hub"]
"""Everyone with everyone, directly; reduce inside a site, exchange between sites, spread inside; the same with all
exchange through one site."""


class SiteOffer(Record, frozen=True, kw_only=True):
    """Members that can be had at a site; one's own cost nothing."""

    name: str
    site: str
    samples_per_s: float
    """Of one member, computing alone."""
    usd_per_hour: float
    most: int
    """How many can be had."""

    def __post_init__(self) -> None:
        for name in ("samples_per_s", "usd_per_hour"):
            require(math.isfinite(getattr(self, name)), f"`{name}` of {self.name} must be a finite number")
        require(self.samples_per_s > 0, f"`samples_per_s` of {self.name} is {self.samples_per_s}; it must be above 0")
        require(self.usd_per_hour >= 0, f"`usd_per_hour` of {self.name} is {self.usd_per_hour}; it must be at least 0")
        require(self.most >= 1, f"`most` of {self.name} is {self.most}; give at least 1, or leave the offer out")


class Egress(Record, frozen=True, kw_only=True):
    """What a GB costs from one site to another, or between members of one."""

    from_site: str
    to_site: str
    usd_per_gb: float

    def __post_init__(self) -> None:
        ends = f"{self.from_site} to {self.to_site}"
        require_price("usd_per_gb", self.usd_per_gb, MOST_USD_PER_GB, "dollars, not cents, for one GB", ends)


class Uplink(Record, frozen=True, kw_only=True):
    """What all members of a site share on their way to other sites, each way."""

    site: str
    bytes_per_s: float

    def __post_init__(self) -> None:
        require(self.bytes_per_s > 0, f"`bytes_per_s` of {self.site} is {self.bytes_per_s}; it must be above 0")


class SiteProblem(Record, frozen=True, kw_only=True):
    """Offers at sites, the ways between them, the work, and what is wanted."""

    offers: tuple[SiteOffer, ...]
    links: tuple[Link, ...]
    """Between and inside sites; others are passed over. Where only one direction was measured, both are like it. Sites
    without a link cannot exchange directly."""
    egress: tuple[Egress, ...]
    batch_size: int
    """Samples of one averaging round, the target batch size."""
    gradient_bytes: float
    """On the wire."""
    num_samples: int
    """That are to be processed in all."""
    goal: SiteGoal = "fastest"
    hour_usd: float | None = None
    """What an hour less is worth; for the goal `weighted`, which minimises dollars + `hour_usd` · hours."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    most_members: int | None = None
    """Of all sites together."""
    averagings: tuple[Averaging, ...] = get_args(Averaging)
    most_streams: int = 64
    """Between two members."""
    stream_slack: float = 0.02
    """As few streams as come within this part of the best rate."""
    num_chunks: int = 1
    """By site and through a hub, how many parts of the gradients follow one another."""
    uplinks: tuple[Uplink, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(offer.site for offer in self.offers))

    @property
    def num_rounds(self) -> int:
        return math.ceil(self.num_samples / self.batch_size)

    def __post_init__(self) -> None:
        require(len(self.offers) > 0, "`offers` is empty; give at least one")
        _once("offers", [offer.name for offer in self.offers])
        for name in ("batch_size", "num_samples", "most_streams", "num_chunks"):
            require(getattr(self, name) >= 1, f"`{name}` is {getattr(self, name)}; it must be at least 1")
        ok = 0 < self.gradient_bytes < math.inf
        require(ok, f"`gradient_bytes` is {self.gradient_bytes}; it must be above 0")
        for name in ("deadline_s", "budget_usd", "most_members"):
            value = getattr(self, name)
            require(value is None or value > 0, f"`{name}` is {value}; it must be above 0, or None for no limit")
        require(0 <= self.stream_slack < 1, f"`stream_slack` is {self.stream_slack}; it must be at least 0 and below 1")
        require(len(self.averagings) > 0, f"`averagings` is empty; give some of {', '.join(get_args(Averaging))}")
        wrong = [each for each in self.averagings if each not in get_args(Averaging)]
        require(not wrong, f"`averagings` has {wrong}; it may have {', '.join(get_args(Averaging))}")
        require(self.goal in get_args(SiteGoal), f"`goal` is {self.goal!r}; give {', '.join(get_args(SiteGoal))}")
        if self.goal == "weighted":
            has_weight = self.hour_usd is not None and 0 <= self.hour_usd < math.inf
            require(has_weight, f"the goal is weighted and `hour_usd` is {self.hour_usd}; say what an hour is worth")
        self._check_ways()

    def _check_ways(self) -> None:
        sites = self.sites
        links = [(link.from_site, link.to_site) for link in self.links]
        _once("links", [ends for ends in links if set(ends) <= set(sites)])
        _once("egress", [(each.from_site, each.to_site) for each in self.egress])
        _once("uplinks", [each.site for each in self.uplinks])
        require(self.averagings != ("hub",) or len(sites) > 2, "a hub alone is allowed, but there are no 3 sites")
        linked = {ends for pair in links for ends in (pair, pair[::-1])}
        priced = {(each.from_site, each.to_site) for each in self.egress}
        for site in sites:
            count = sum(offer.most for offer in self.offers if offer.site == site)
            if min(count, self.most_members or count) > 1:
                require((site, site) in linked, f"`links` has none inside {site}, where several members can be had")
            else:
                linked.discard((site, site))
        for ends in sorted(linked):
            if set(ends) <= set(sites):
                require(ends in priced, f"`egress` has no price from {ends[0]} to {ends[1]}; give one, 0 if it is free")


class SiteCount(Record, frozen=True, kw_only=True):
    """So many members on one offer."""

    offer: str
    site: str
    num_members: int


class WayUse(Record, frozen=True, kw_only=True):
    """What the run sends from one site to another, or inside one."""

    from_site: str
    to_site: str
    num_streams: int
    """Between each two members that exchange."""
    num_bytes: float
    usd: float


class SiteChoice(Record, frozen=True, kw_only=True):
    """One way to do it, with what it takes and costs."""

    counts: tuple[SiteCount, ...]
    averaging: Averaging
    hub: str | None
    ways: tuple[WayUse, ...]
    compute_s: float
    """Of one round."""
    averaging_s: float
    """Of one round."""
    num_rounds: int
    batch_size: int
    compute_usd: float
    """Of the whole run, as are the others below."""
    egress_usd: float

    @property
    def num_members(self) -> int:
        return sum(each.num_members for each in self.counts)

    @property
    def num_by_offer(self) -> dict[str, int]:
        return {each.offer: each.num_members for each in self.counts}

    @property
    def granularity(self) -> float:
        """Computing over communication (clouds and continents (1)); infinite for one member."""
        return self.compute_s / self.averaging_s if self.averaging_s > 0 else math.inf

    @property
    def round_s(self) -> float:
        return self.compute_s + self.averaging_s

    @property
    def time_s(self) -> float:
        return self.num_rounds * self.round_s

    @property
    def usd(self) -> float:
        return self.compute_usd + self.egress_usd

    @property
    def samples_per_s(self) -> float:
        return self.batch_size / self.round_s

    @property
    def usd_per_hour(self) -> float:
        """Of all members, with their traffic."""
        return self.usd / (self.time_s / SECONDS_PER_HOUR)

    def __str__(self) -> str:
        members = " + ".join(f"{each.num_members} × {each.offer}" for each in self.counts)
        how = (
            f"through {self.hub}" if self.hub else {"everyone": "everyone with everyone"}.get(self.averaging, "by site")
        )
        return members if self.num_members == 1 else f"{members}, averaging {how}"


class SitePlan(Record, frozen=True, kw_only=True):
    """The best choice for the goal within the limits, the next best with other members, and how sure that is."""

    best: SiteChoice
    next_best: tuple[SiteChoice, ...]
    proof: Proof


class SiteFront(Record, frozen=True, kw_only=True):
    """All choices within the limits that nothing beats in both time and cost, fastest first."""

    choices: tuple[SiteChoice, ...]
    proof: Proof


def egress_between(prices: Prices, sites: Sequence[str]) -> tuple[Egress, ...]:
    """What `zooid.catalog.prices_for` knows of these sites; a way without a price is left out, refused if linked."""
    ways = [(a, b) for a in sites for b in sites if prices.egress is None or (a, b) in prices.egress]
    return tuple(Egress(from_site=a, to_site=b, usd_per_gb=prices.usd_per_gb(a, b)) for a, b in ways)


def _once(name: str, keys: Iterable[object]) -> None:
    seen: set[object] = set()
    for key in keys:
        what = " to ".join(key) if isinstance(key, tuple) else key
        require(key not in seen, f"`{name}` has {what} twice; give it once")
        seen.add(key)
