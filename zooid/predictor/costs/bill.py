"""The bill of a run: its cost terms, which sum exactly to the total.

Members are billed from launch to exit, in whole billing grains and for at least the minimum. The store, the links
between sites and the data set are charged by their use. With one size of member, no billing grain and compute alone,
this is FuncPipe's (6), c = P · t · Σ memory, and Hydrozoa's price of its workers times their running time.
"""

import math
from collections.abc import Iterable, Sequence

from zooid.core.errors import PlanError
from zooid.core.plans.plan import CostTerm
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import FREE, Prices
from zooid.core.resources.tariff import time_usd
from zooid.core.units import SECONDS_PER_HOUR
from zooid.predictor.costs.usage import NO_USAGE, Move, RunUsage

SECONDS_PER_MONTH = 730 * SECONDS_PER_HOUR
"""Price lists charge storage by a month of 730 hours, in proportion to the time."""
BYTES_PER_GB = 1e9
"""Some price lists mean 2^30 bytes; their real price is then 7 % lower than the prediction."""

COST_KINDS = ("compute", "start-up", "starts", "requests", "storage", "egress", "data")
PREPARATION = "preparation"
"""The time of members that measure a job or a link, or prepare or check a run. A meter has this kind, too."""
METERED_KINDS = (*COST_KINDS, PREPARATION)


def bill_usd(offer: Offer, running_s: float) -> float:
    """Bill of one member: its time rounded up to the billing grain, at least the minimum, and the price of a start."""
    return offer.usd_per_start + member_time_usd(offer, running_s)


def run_cost(
    members: Sequence[Offer],
    running_s: float,
    startup_s: float = 0.0,
    usage: RunUsage = NO_USAGE,
    prices: Prices = FREE,
) -> tuple[CostTerm, ...]:
    """Cost terms of a run with one member on each of these offers, all of which run for `running_s`.

    `startup_s` is the part of it before the first step. It is billed like the rest, and shown as a term of its own. The
    result has all kinds in the order of COST_KINDS, even at zero cost. A used link without a price is a PlanError.
    """
    if not 0 <= startup_s <= running_s:
        raise PlanError(f"`startup_s` is {startup_s}; it must be between 0 and `running_s`, which is {running_s}")
    bills = [member_time_usd(offer, running_s) for offer in members]
    startup_bills = [
        min(bill, offer.usd_per_hour * startup_s / SECONDS_PER_HOUR) for offer, bill in zip(members, bills, strict=True)
    ]
    usd = {
        "compute": math.fsum(bill - startup for bill, startup in zip(bills, startup_bills, strict=True)),
        "start-up": math.fsum(startup_bills),
        "starts": math.fsum(offer.usd_per_start for offer in members),
        **usage_usd(usage, prices),
    }
    return tuple(CostTerm(kind=kind, usd=usd[kind]) for kind in COST_KINDS)


def usage_usd(usage: RunUsage, prices: Prices) -> dict[str, float]:
    """Cost of requests, storage, traffic and reading data, by kind."""
    storage, data = prices.storage, prices.data_storage
    usd_per_list = storage.usd_per_put if storage.usd_per_list is None else storage.usd_per_list
    return {
        "requests": usage.num_puts * storage.usd_per_put
        + usage.num_gets * storage.usd_per_get
        + usage.num_lists * usd_per_list,
        "storage": usage.stored_byte_s / BYTES_PER_GB / SECONDS_PER_MONTH * storage.usd_per_gb_month,
        "egress": _traffic_usd(usage.moves, prices),
        "data": usage.data_gets * data.usd_per_get + _traffic_usd(usage.data_moves, prices),
    }


def total_usd(terms: Iterable[CostTerm]) -> float:
    """Sum of the terms, correctly rounded, so that it does not depend on their order."""
    return math.fsum(term.usd for term in terms)


def samples_per_usd(num_samples: float, usd: float) -> float:
    """Number of samples that a dollar trains; infinite where nothing is charged."""
    return num_samples / usd if usd > 0 else math.inf


def usd_per_million_samples(num_samples: float, usd: float) -> float:
    if not num_samples > 0:
        raise PlanError(f"the price of a million samples does not follow from {num_samples} samples; give more than 0")
    return usd / num_samples * 1e6


def member_time_usd(offer: Offer, running_s: float) -> float:
    return time_usd(offer.usd_per_hour, running_s, offer.billing_grain_s, offer.billing_minimum_s)


def _traffic_usd(moves: Sequence[Move], prices: Prices) -> float:
    return math.fsum(
        move.num_bytes / BYTES_PER_GB * prices.usd_per_gb(move.from_site, move.to_site)
        for move in moves
        if move.num_bytes > 0
    )
