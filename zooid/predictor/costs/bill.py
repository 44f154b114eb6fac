"""What a run costs: every term of the bill, summing exactly to the total.

Members are billed by the time from their launch to their exit, in whole billing grains and at least the minimum; what
the store, the ways between sites and the data set charge follows from what the run uses of them. With one member size,
no billing grain and nothing but compute this is FuncPipe's (6), c = P · t · Σ memory, and Hydrozoa's price of its
workers times the time that they run.
"""

import math
from collections.abc import Iterable, Sequence

from zooid.core.errors import PlanError
from zooid.core.plans.plan import CostTerm
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import FREE, Prices
from zooid.core.units import SECONDS_PER_HOUR
from zooid.predictor.costs.usage import NO_USAGE, Move, Usage

__all__ = [
    "COST_KINDS",
    "FREE",
    "NO_USAGE",
    "Prices",
    "Usage",
    "bill_usd",
    "run_cost",
    "samples_per_usd",
    "total_usd",
    "usd_per_million_samples",
]

SECONDS_PER_MONTH = 730 * SECONDS_PER_HOUR
"""Storage is charged by the month, in the part of it that it was used: 730 hours in price lists."""
BYTES_PER_GB = 1e9
"""Some price lists mean 2^30, so that their prices are 7 % lower than what is predicted."""

COST_KINDS = ("compute", "start-up", "starts", "requests", "storage", "egress", "data")


def bill_usd(offer: Offer, running_s: float) -> float:
    """The bill of one member that ran this long: time rounded up to the billing grain, at least the minimum."""
    return offer.usd_per_start + _time_usd(offer, running_s)


def run_cost(
    members: Sequence[Offer],
    running_s: float,
    startup_s: float = 0.0,
    usage: Usage = NO_USAGE,
    prices: Prices = FREE,
) -> tuple[CostTerm, ...]:
    """Terms of a run in which one member on each of these offers runs this long, its start-up included.

    `startup_s` is how much of that goes by before the first step: those seconds are billed like all others, and shown
    as a term of their own. All kinds are there, in the order of COST_KINDS, also where they cost nothing. A way that
    bytes take and that has no price is a PlanError.
    """
    if not 0 <= startup_s <= running_s:
        raise PlanError(f"`startup_s` is {startup_s}; it must be between 0 and `running_s`, which is {running_s}")
    bills = [_time_usd(offer, running_s) for offer in members]
    starting = [
        min(bill, offer.usd_per_hour * startup_s / SECONDS_PER_HOUR) for offer, bill in zip(members, bills, strict=True)
    ]
    storage, data = prices.storage, prices.data_storage
    usd_per_list = storage.usd_per_put if storage.usd_per_list is None else storage.usd_per_list
    usd = {
        "compute": math.fsum(bill - start for bill, start in zip(bills, starting, strict=True)),
        "start-up": math.fsum(starting),
        "starts": math.fsum(offer.usd_per_start for offer in members),
        "requests": usage.num_puts * storage.usd_per_put
        + usage.num_gets * storage.usd_per_get
        + usage.num_lists * usd_per_list,
        "storage": usage.stored_byte_s / BYTES_PER_GB / SECONDS_PER_MONTH * storage.usd_per_gb_month,
        "egress": _traffic_usd(usage.moves, prices),
        "data": usage.data_gets * data.usd_per_get + _traffic_usd(usage.data_moves, prices),
    }
    return tuple(CostTerm(kind=kind, usd=usd[kind]) for kind in COST_KINDS)


def total_usd(terms: Iterable[CostTerm]) -> float:
    """The total that the terms sum to; correctly rounded, so that it does not depend on their order."""
    return math.fsum(term.usd for term in terms)


def samples_per_usd(num_samples: float, usd: float) -> float:
    """What a dollar trains; infinity where nothing is charged."""
    return num_samples / usd if usd > 0 else math.inf


def usd_per_million_samples(num_samples: float, usd: float) -> float:
    if not num_samples > 0:
        raise PlanError(f"a price of a million samples cannot be had from {num_samples} samples; give a number above 0")
    return usd / num_samples * 1e6


def _time_usd(offer: Offer, running_s: float) -> float:
    grains = math.ceil(max(running_s, offer.billing_minimum_s) / offer.billing_grain_s - 1e-9)
    return grains * offer.billing_grain_s * offer.usd_per_hour / SECONDS_PER_HOUR


def _traffic_usd(moves: Sequence[Move], prices: Prices) -> float:
    return math.fsum(
        move.num_bytes / BYTES_PER_GB * prices.usd_per_gb(move.from_site, move.to_site)
        for move in moves
        if move.num_bytes > 0
    )
