"""The problem of members at several sites: offers, links, prices of traffic, and the work of the run."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from zooid.core.records import Record, require
from zooid.core.resources.link import Link
from zooid.core.resources.offer import MAX_USD_PER_GB, require_price
from zooid.core.resources.prices import Prices

Averaging = Literal["everyone", "by_site", "hub"]
"""How gradients are averaged.

`everyone`: each member exchanges directly with each other member. `by_site`: members reduce inside a site, exchange
between sites, and spread the result inside. `hub`: the same, with all exchange through one site.
"""


class SiteOffer(Record, frozen=True, kw_only=True):
    """Members that can be rented at a site. Machines that the user owns cost nothing."""

    name: str
    site: str
    samples_per_s: float
    """The speed of one member that computes without communication."""
    usd_per_hour: float
    max_members: int

    def __post_init__(self) -> None:
        for name in ("samples_per_s", "usd_per_hour"):
            value = getattr(self, name)
            require(math.isfinite(value), f"`{name}` of {self.name} is {value}; give a finite number")
        require(self.samples_per_s > 0, f"`samples_per_s` of {self.name} is {self.samples_per_s}; it must be above 0")
        require(self.usd_per_hour >= 0, f"`usd_per_hour` of {self.name} is {self.usd_per_hour}; it must be at least 0")
        require(
            self.max_members >= 1,
            f"`max_members` of {self.name} is {self.max_members}; give at least 1, or leave the offer out",
        )


class Egress(Record, frozen=True, kw_only=True):
    """The price of traffic from one site to another, or between members of one site."""

    from_site: str
    to_site: str
    usd_per_gb: float

    def __post_init__(self) -> None:
        ends = f"{self.from_site} to {self.to_site}"
        require_price("usd_per_gb", self.usd_per_gb, MAX_USD_PER_GB, "dollars, not cents, for one GB", ends)


class Uplink(Record, frozen=True, kw_only=True):
    """The bandwidth to other sites that all members of a site share, in each direction."""

    site: str
    bytes_per_s: float

    def __post_init__(self) -> None:
        require(self.bytes_per_s > 0, f"`bytes_per_s` of {self.site} is {self.bytes_per_s}; it must be above 0")


class SiteProblem(Record, frozen=True, kw_only=True):
    """Offers at sites, the links between them, and the work of the run."""

    offers: tuple[SiteOffer, ...]
    links: tuple[Link, ...]
    """Links between and inside sites; links of other sites are ignored. A link that was measured in one direction
    counts for both. Sites without a link cannot exchange directly."""
    egress: tuple[Egress, ...]
    batch_size: int
    """The number of samples between two averaging rounds, called the target batch size in the paper."""
    gradient_bytes: float
    """The size of the gradients on the wire."""
    num_samples: int
    """The number of samples that the run processes."""
    max_members: int | None = None
    """The largest number of members at all sites together."""
    averagings: tuple[Averaging, ...] = get_args(Averaging)
    """The averagings that the search may choose from."""
    max_streams: int = 64
    """The largest number of streams between two members."""
    stream_slack: float = 0.02
    """The fraction of the best rate that may be given up in order to use fewer streams."""
    num_chunks: int = 1
    """The number of parts into which `by_site` and `hub` split the gradients, so that their phases overlap."""
    uplinks: tuple[Uplink, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(offer.site for offer in self.offers))

    @property
    def num_rounds(self) -> int:
        return math.ceil(self.num_samples / self.batch_size)

    def __post_init__(self) -> None:
        require(len(self.offers) > 0, "`offers` is empty; give at least one")
        _require_once("offers", [offer.name for offer in self.offers])
        for name in ("batch_size", "num_samples", "max_streams", "num_chunks"):
            require(getattr(self, name) >= 1, f"`{name}` is {getattr(self, name)}; it must be at least 1")
        is_valid = 0 < self.gradient_bytes < math.inf
        require(is_valid, f"`gradient_bytes` is {self.gradient_bytes}; it must be finite and above 0")
        require(
            self.max_members is None or self.max_members > 0,
            f"`max_members` is {self.max_members}; it must be above 0, or None for no limit",
        )
        require(0 <= self.stream_slack < 1, f"`stream_slack` is {self.stream_slack}; it must be at least 0 and below 1")
        require(len(self.averagings) > 0, f"`averagings` is empty; give some of {', '.join(get_args(Averaging))}")
        unknown = [averaging for averaging in self.averagings if averaging not in get_args(Averaging)]
        require(not unknown, f"`averagings` has {unknown}; give some of {', '.join(get_args(Averaging))}")
        self._check_links()

    def _check_links(self) -> None:
        sites = self.sites
        ends_of_links = [(link.from_site, link.to_site) for link in self.links]
        _require_once("links", [ends for ends in ends_of_links if set(ends) <= set(sites)])
        _require_once("egress", [(each.from_site, each.to_site) for each in self.egress])
        _require_once("uplinks", [each.site for each in self.uplinks])
        require(
            self.averagings != ("hub",) or len(sites) > 2,
            f"`averagings` has only hub, and there are {len(sites)} sites; give at least 3 sites, or other averagings",
        )
        linked = {ends for pair in ends_of_links for ends in (pair, pair[::-1])}
        priced = {(each.from_site, each.to_site) for each in self.egress}
        for site in sites:
            num_members = sum(offer.max_members for offer in self.offers if offer.site == site)
            if min(num_members, self.max_members or num_members) > 1:
                require(
                    (site, site) in linked,
                    f"`links` has none inside {site}, where several members can be rented; give one",
                )
            else:
                linked.discard((site, site))
        for ends in sorted(linked):
            if set(ends) <= set(sites):
                require(ends in priced, f"`egress` has no price from {ends[0]} to {ends[1]}; give one, 0 if it is free")


def egress_between(prices: Prices, sites: Sequence[str]) -> tuple[Egress, ...]:
    """Return the prices of `zooid.catalog.prices_for` between these sites, without the pairs that have no price."""
    priced = [(a, b) for a in sites for b in sites if prices.egress is None or (a, b) in prices.egress]
    return tuple(Egress(from_site=a, to_site=b, usd_per_gb=prices.usd_per_gb(a, b)) for a, b in priced)


def _require_once(name: str, keys: Iterable[object]) -> None:
    seen: set[object] = set()
    for key in keys:
        shown = " to ".join(key) if isinstance(key, tuple) else key
        require(key not in seen, f"`{name}` has {shown} twice; give it once")
        seen.add(key)
