"""How many members hold each stage while others are replaced, how fast steps are then, and how often none is left.

Each member is lost at random moments at a constant rate λ, also while it starts, and its replacement starts at once. So
a seat is held if its member was not lost in the last w seconds, where w is the time until a replacement holds the
state. That has the probability q = exp(−λ w), for every seat independently of the others.

    Stage s has i of its n seats held with the probability of a sum of n independent events.
    There are as many pipelines as the stage with the fewest has seats.
    A stage loses its last member at the rate Σ_i λ_i q_i Π_{j≠i} (1 − q_j), if it has one: divided by 1 − Π (1 − q_j).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.errors import HopelessPlan
from zooid.core.units import format_duration

_MAX_EXPONENT = 20.0
"""Above this, a seat is held in less than e^−20 of the time."""


@dataclass(frozen=True, kw_only=True)
class SeatRisk:
    """What may happen to the members that hold one seat, one after the other."""

    losses_per_s: float
    startup_s: float
    """Time from a member's launch until it can join."""
    lifetime_s: float | None = None
    """Time after which the platform ends a member; None if it does not."""
    work: float = 0.0
    """Fraction of a step's grains that the seat computes. 0 for a copy."""

    def held(self, joining_s: float) -> float:
        """Probability that the seat is held, if a replacement joins this long after it has started."""
        exponent = self.losses_per_s * (self.startup_s + joining_s)
        if exponent > _MAX_EXPONENT:
            raise HopelessPlan(
                f"members are lost {format_duration(1 / self.losses_per_s)} after their launch on average, but take "
                f"{format_duration(self.startup_s + joining_s)} to start and to join; give other offers"
            )
        return math.exp(-exponent)


def losses_per_s(stages: Sequence[Sequence[SeatRisk]]) -> float:
    """Rate of losses of all members together."""
    return math.fsum(seat.losses_per_s for seats in stages for seat in seats)


def rollbacks_per_s(stages: Sequence[Sequence[SeatRisk]], joining_s: float, *, survives_losses: bool) -> float:
    """Rate at which a working run loses the last member of a stage; any member, if it cannot continue without one."""
    if not survives_losses:
        return losses_per_s(stages)
    return math.fsum(_last_lost_per_s(seats, joining_s) for seats in stages)


def _last_lost_per_s(seats: Sequence[SeatRisk], joining_s: float) -> float:
    held = [seat.held(joining_s) for seat in seats]
    rate = 0.0
    for number, seat in enumerate(seats):
        others_missing = math.prod(1 - each for index, each in enumerate(held) if index != number)
        rate += seat.losses_per_s * held[number] * others_missing
    return rate / (1 - math.prod(1 - each for each in held))


def mean_speed(stages: Sequence[Sequence[SeatRisk]], num_replicas: int, joining_s: float, slowdown: float) -> float:
    """Mean speed of a run that has a member for every stage, relative to its speed with all members.

    Steps with one pipeline fewer take `slowdown` times as long, and those with even fewer in proportion. Replicas of
    one stage may compute different fractions of a step, and take theirs with them.
    """
    if num_replicas == 1:
        return 1.0
    if len(stages) == 1:
        lost_by_one = (1 - 1 / slowdown) * num_replicas  # 1 if a step takes n / (n − 1) times as long
        return 1 - lost_by_one * math.fsum(seat.work * (1 - seat.held(joining_s)) for seat in stages[0])
    at_least = [1.0] * (num_replicas + 1)
    for seats in stages:
        counts = _count_probabilities([seat.held(joining_s) for seat in seats])
        for number in range(num_replicas + 1):
            at_least[number] *= math.fsum(counts[number:])
    speed = at_least[num_replicas]
    for number in range(1, num_replicas):
        speed += (at_least[number] - at_least[number + 1]) * number / ((num_replicas - 1) * slowdown)
    return speed / at_least[1]


def _count_probabilities(probabilities: Sequence[float]) -> list[float]:
    """Probabilities that 0, 1, 2, … of these independent events happen.

    >>> _count_probabilities([0.5, 0.5])
    [0.25, 0.5, 0.25]
    """
    counts = [1.0]
    for probability in probabilities:
        counts = [
            before * probability + now * (1 - probability)
            for before, now in zip((0.0, *counts), (*counts, 0.0), strict=True)
        ]
    return counts
