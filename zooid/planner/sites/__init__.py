"""Members at several sites: how many at each, how their gradients meet, and what that takes and costs.

Exact for the closed forms of clouds and continents (`predictor.closed_forms.sites`): computing is shared by speed,
averaging follows from links and members, money is members' hours and the bytes on every way.

A ring over everyone is not among the averagings: inside a site it takes what `by_site` takes, and between sites it
sends more than that, 2s(N−1)/N over each of G ways against 2s(G−1)/G out of each site, one message after another.
"""

from zooid.planner.sites.limits import Loosening, loosenings
from zooid.planner.sites.problem import (
    Egress,
    SiteChoice,
    SiteCount,
    SiteFront,
    SiteOffer,
    SitePlan,
    SiteProblem,
    Uplink,
    WayUse,
    egress_between,
)
from zooid.planner.sites.reasons import BatchAdvice, OneMore, SiteReasons, batch_for, site_reasons
from zooid.planner.sites.search import site_choice, site_front, solve_sites

__all__ = [
    "BatchAdvice",
    "Egress",
    "Loosening",
    "OneMore",
    "SiteChoice",
    "SiteCount",
    "SiteFront",
    "SiteOffer",
    "SitePlan",
    "SiteProblem",
    "SiteReasons",
    "Uplink",
    "WayUse",
    "batch_for",
    "egress_between",
    "loosenings",
    "site_choice",
    "site_front",
    "site_reasons",
    "solve_sites",
]
