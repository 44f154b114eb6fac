"""Layouts of members at one site, with the same link to one another or to the store."""

from collections.abc import Sequence

from zooid.core.plans.plan import AllReduceName, TransportName
from zooid.core.plans.stage import StageTimes
from zooid.core.resources.link import STORE_SITE
from zooid.predictor import DirectedLink, Layout
from zooid.predictor.simulation.layout import Looks


def one_site(
    stages: Sequence[StageTimes],
    link: DirectedLink,
    *,
    back: DirectedLink | None = None,
    transport: TransportName = "store",
    looks: Looks = "store",
    all_reduce: AllReduceName = "auto",
    host_cores: float | None = None,
) -> Layout:
    """All members at one site; `back` is the link from the store, if it differs from the one to it."""
    site = "here"
    return Layout(
        stages=(tuple(stages),),
        sites=((site,) * len(stages),),
        links={(site, site): link, (site, STORE_SITE): link, (STORE_SITE, site): back or link},
        transport=transport,
        looks=looks,
        all_reduce=all_reduce,
        host_cores=host_cores,
    )
