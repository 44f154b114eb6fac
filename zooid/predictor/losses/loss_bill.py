"""What lost members and hand-overs cost: a longer run, more starts, and two members that are paid for one seat.

All members of a run are paid while it stands still, except the lost one: its replacement is started, and paid, when the
others have agreed to continue. A successor is paid beside its predecessor until it has taken over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.plans.plan import CostTerm
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR
from zooid.predictor.costs.bill import member_time_usd
from zooid.predictor.costs.usage import Checkpoints, Move, RunUsage, joining_usage, waiting_usage
from zooid.predictor.losses.availability import SeatRisk
from zooid.predictor.losses.handovers import overlap_s, successor_after_s
from zooid.predictor.losses.run_losses import RiskyRun, RunRisk


@dataclass(frozen=True)
class PaidSeat:
    """A seat with its offer, and how many members are expected to begin on it besides the first."""

    offer: Offer
    risk: SeatRisk
    num_losses: float
    num_handovers: float
    unpaid_s: float = 0.0
    """Time after a loss for which nobody is paid for the seat."""


def paid_seats(offers: Sequence[Offer], risk: RunRisk, run: RiskyRun) -> list[PaidSeat]:
    """All seats. `offers` are in the order of members: the first replica's stages come first."""
    num_stages, run_s = len(risk.stages), run.run_s
    by_stage = [offer for stage in range(num_stages) for offer in offers[stage::num_stages]]
    return [
        PaidSeat(offer, seat, seat.losses_per_s * run_s, num_handovers, _unpaid_s(risk, run))
        for offer, seat, num_handovers in zip(by_stage, risk.seats, run.handovers.by_seat, strict=True)
    ]


def _unpaid_s(risk: RunRisk, run: RiskyRun) -> float:
    """Mean time after a loss for which nobody is paid for the seat. It is 0 if nobody is left who has to agree."""
    if len(risk.stages) > 1 or not run.num_losses:
        return risk.loss_pause_s
    is_survived = 0.0 if len(risk.seats) == 1 else max(0.0, 1 - run.num_rollbacks / run.num_losses)
    return is_survived * risk.loss_pause_s


def loss_terms(
    seats: Sequence[PaidSeat], unlost_s: float, changing_s: float, lost_s: float, step_s: float, more: float = 1.0
) -> tuple[CostTerm, CostTerm]:
    """Cost of losses and of hand-overs.

    The run takes `unlost_s` without both. It takes `changing_s` longer by hand-overs, and `lost_s` by losses. `more` is
    a factor on the expected number of lost members.
    """
    changed_s = unlost_s + changing_s
    run_s = changed_s + lost_s
    losses_usd, handovers_usd = [], []
    for seat in seats:
        offer = seat.offer
        handovers_usd.append(member_time_usd(offer, changed_s) - member_time_usd(offer, unlost_s))
        losses_usd.append(member_time_usd(offer, run_s) - member_time_usd(offer, changed_s))
        each_usd = offer.usd_per_start + _unused_usd(offer, seat.risk.losses_per_s)
        each_usd -= seat.unpaid_s * offer.usd_per_hour / SECONDS_PER_HOUR
        losses_usd.append(more * seat.num_losses * each_usd)
        if seat.num_handovers:
            handovers_usd.append(seat.num_handovers * _handover_usd(seat, run_s, step_s))
    return (
        CostTerm(kind="losses", usd=math.fsum(losses_usd)),
        CostTerm(kind="hand-overs", usd=math.fsum(handovers_usd)),
    )


def _unused_usd(offer: Offer, losses_per_s: float) -> float:
    """Expected price of the time that a lost member is charged for and does not run: minimum and rounding.

    Let g be the billing grain and m the minimum in whole grains. A member lives X s, with an exponential distribution.
    The billed time is m, and g more for each of the moments m, m + g, m + 2 g, … that it lives to see.
    """
    if not losses_per_s:
        return 0.0
    grain_s = offer.billing_grain_s
    minimum_s = math.ceil(offer.billing_minimum_s / grain_s - 1e-9) * grain_s
    billed_s = minimum_s + grain_s * math.exp(-losses_per_s * minimum_s) / -math.expm1(-losses_per_s * grain_s)
    return max(0.0, billed_s - 1 / losses_per_s) * offer.usd_per_hour / SECONDS_PER_HOUR


def _handover_usd(seat: PaidSeat, run_s: float, step_s: float) -> float:
    """Price of one hand-over: the successor's start, and the time for which both members run."""
    offer, both_s = seat.offer, overlap_s(seat.risk, step_s)
    lived_s = (successor_after_s(seat.risk, run_s, step_s) or 0.0) + both_s
    unused_usd = member_time_usd(offer, lived_s) - lived_s * offer.usd_per_hour / SECONDS_PER_HOUR
    return offer.usd_per_start + both_s * offer.usd_per_hour / SECONDS_PER_HOUR + max(0.0, unused_usd)


def loss_usage(
    seats: Sequence[PaidSeat], num_replicas_and_copies: int, checkpoints: Checkpoints, run: RiskyRun, *, is_direct: bool
) -> RunUsage:
    """Requests and bytes of members that join, and of checkpoints that are read after rollbacks.

    A joining member receives the state of its stage from another member. After a rollback, all read the checkpoint.
    """
    usage = RunUsage()
    for number, seat in enumerate(seats):
        num_bytes = checkpoints.stage_bytes[number // num_replicas_and_copies]
        num_joined = seat.num_losses + seat.num_handovers
        site = seat.offer.site
        received = [(site, site)] if is_direct else [(site, STORE_SITE), (STORE_SITE, site)]
        moves = [Move(*ends, num_joined * num_bytes) for ends in received]
        moves.append(Move(STORE_SITE, site, run.num_rollbacks * num_bytes))
        usage += joining_usage(num_joined, len(seats)) + waiting_usage(num_joined)
        usage += RunUsage(
            num_puts=0.0 if is_direct else num_joined, num_gets=2 * (num_joined + run.num_rollbacks), moves=tuple(moves)
        )
    return usage
