"""Hand-overs to successors, because members run out of time.

A successor starts early enough to hold the state before the lifetime of its predecessor ends
(`schedule/successor_lead.py`). Let P be the time from the launch of a member to that of its successor, o the time until
the successor has taken over, and λ the rate of losses. A line of successors begins with the run, and after every loss,
and ends with the next loss of the seat. The k-th hand-over of a line is k P + o after its beginning. So a seat is
expected to be handed over this often in a run of T s:

    Σ_k exp(−λ t) + Σ_k exp(−λ t) λ (T − t), over k ≥ 1 with t = k P + o < T

The first sum is that of the line which begins with the run. Its first successor is started earlier, if nobody has
joined before, since the run then does not know yet how long that takes.

Members that were launched together hand over together, in one change of the roster. Lines that began after a loss are
assumed to be alone.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.errors import HopelessPlan
from zooid.core.units import format_duration
from zooid.predictor.losses.availability import SeatRisk, losses_per_s
from zooid.schedule.successor_lead import MAX_JOINING_FRACTION, successor_lead_s

_LEAD_STEPS = 3.0
"""A successor has to be ready this many steps before its predecessor's lifetime ends: it waits for a step to begin,
receives the state during one step, and one step is in reserve."""
_TAKING_OVER_STEPS = 1.5
"""Steps from a successor's readiness until it has taken over: half a step until a step begins, and one as a guest."""
_MAX_HANDOVERS = 1e6
"""A seat that is handed over more often hardly trains between two hand-overs."""
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Handovers:
    """Expected hand-overs of a run."""

    by_seat: tuple[float, ...]
    """Number of hand-overs of each seat, by stage and then by replica."""
    num_changes: float
    """Number of roster changes for them."""

    @property
    def total(self) -> float:
        return math.fsum(self.by_seat)


def overlap_s(seat: SeatRisk, step_s: float) -> float:
    """Time for which a successor runs beside its predecessor."""
    return seat.startup_s + _TAKING_OVER_STEPS * step_s


def successor_after_s(seat: SeatRisk, run_s: float, step_s: float) -> float | None:
    """Time from a member's launch to that of its successor; None if the run ends within the member's lifetime."""
    if seat.lifetime_s is None or run_s <= seat.lifetime_s:
        return None
    needed_s = seat.startup_s + _LEAD_STEPS * step_s
    after_s = seat.lifetime_s - successor_lead_s(seat.lifetime_s, overlap_s(seat, step_s))
    if needed_s >= MAX_JOINING_FRACTION * seat.lifetime_s or run_s > _MAX_HANDOVERS * after_s:
        raise HopelessPlan(
            f"members live for {format_duration(seat.lifetime_s)}, but a successor needs {format_duration(needed_s)} "
            "to start and to take over; give an offer with a lifetime of more than twice that, or smaller steps"
        )
    return after_s


def handovers(stages: Sequence[Sequence[SeatRisk]], run_s: float, step_s: float) -> Handovers:
    """Expected hand-overs in a run of this time."""
    seats = [seat for stage in stages for seat in stage]
    rate = losses_per_s(stages)
    lines = {seat: _lines(seat, count, rate, run_s, step_s) for seat, count in Counter(seats).items()}
    return Handovers(
        by_seat=tuple(lines[seat][0] for seat in seats),
        num_changes=math.fsum(changes for _, changes in lines.values()),
    )


def _lines(seat: SeatRisk, count: int, loss_rate: float, run_s: float, step_s: float) -> tuple[float, float]:
    """Hand-overs of one of these seats, and roster changes for all of them. Members of the run are lost at a rate."""
    period_s = successor_after_s(seat, run_s, step_s)
    if period_s is None:
        return 0.0, 0.0
    assert seat.lifetime_s is not None
    first_s = seat.lifetime_s - successor_lead_s(seat.lifetime_s, 0.0, seat.startup_s)
    earlier_s = (period_s - first_s) * math.exp(-loss_rate * first_s)
    each = changes = 0.0
    after_s = period_s + overlap_s(seat, step_s)
    while after_s - earlier_s < run_s:
        unlost = math.exp(-seat.losses_per_s * (after_s - earlier_s))
        if unlost < _NEGLIGIBLE:
            break
        later = math.exp(-seat.losses_per_s * after_s) * seat.losses_per_s * max(0.0, run_s - after_s)
        each += unlost + later
        changes += 1 - (1 - unlost) ** count + count * later
        after_s += period_s
    return each, changes
