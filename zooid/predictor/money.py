"""What members cost: every term of the bill, summing exactly to the total."""

import math

from zooid.core.offer import Offer
from zooid.core.plan import CostTerm

SECONDS_PER_HOUR = 3600.0


def bill_usd(offer: Offer, running_s: float) -> float:
    """The bill of one member that ran this long: time rounded up to the billing grain, at least the minimum."""
    grains = math.ceil(max(running_s, offer.billing_minimum_s) / offer.billing_grain_s - 1e-9)
    return offer.usd_per_start + grains * offer.billing_grain_s * offer.usd_per_hour / SECONDS_PER_HOUR


def run_cost(offers: list[Offer], running_s: float) -> tuple[CostTerm, ...]:
    """Terms of a run in which one member on each of these offers runs this long."""
    starts = math.fsum(offer.usd_per_start for offer in offers)
    compute = math.fsum(bill_usd(offer, running_s) - offer.usd_per_start for offer in offers)
    return (CostTerm(kind="compute", usd=compute), CostTerm(kind="starts", usd=starts))
