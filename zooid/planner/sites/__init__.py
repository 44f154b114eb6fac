"""The exact search for the number of members at each of several sites, and for how they average gradients.

It is exact for the closed forms of clouds and continents: samples are split by speed, averaging follows from links and
members, and money is the members' hours and the bytes on every link.

A ring over all members is not among the averagings. Inside a site it takes as long as `by_site`. Between G sites it
sends more: 2s(N−1)/N over each of G links, one message after another, against 2s(G−1)/G out of each site.
"""

from zooid.planner.sites.answer import LinkUse, SiteChoice, SiteCount, SiteFront
from zooid.planner.sites.problem import Egress, SiteOffer, SiteProblem, Uplink, egress_between
from zooid.planner.sites.search import site_front

__all__ = [
    "Egress",
    "LinkUse",
    "SiteChoice",
    "SiteCount",
    "SiteFront",
    "SiteOffer",
    "SiteProblem",
    "Uplink",
    "egress_between",
    "site_front",
]
