"""Work that begins again when a member is lost: mean and variance of its time, by renewal arguments.

Losses come at random moments at a constant rate Λ, so the time X to the next one is exponential, and the past does not
matter. Work of a s is done if X > a. Otherwise the run recovers for a time R, and has b s of work before it: those
before the loss are lost, and those since the last complete checkpoint, too. With q = exp(−Λ b):

    E T_b = (q b + E[X; X ≤ b] + (1 − q) E R) / q,     E T_a = E[min(X, a)] + P(X ≤ a) (E R + E T_b)

With b = a and a fixed R, this is Daly's E T = exp(Λ R) (exp(Λ a) − 1) / Λ, where recovering begins again, too. Second
moments follow from the same recursion.
"""

import math
from typing import NamedTuple

from zooid.core.errors import HopelessPlan
from zooid.core.units import format_duration

_MAX_EXPONENT = 20.0
"""Above this, work takes more than e^20 times as long as without losses."""
_SERIES_BELOW = 1e-3


class Moments(NamedTuple):
    """Mean and variance of a time."""

    mean_s: float
    variance: float = 0.0

    @property
    def square(self) -> float:
        """Second moment: the mean of the square."""
        return self.variance + self.mean_s**2

    def plus(self, other: "Moments") -> "Moments":
        """Moments of the sum with another, independent time."""
        return Moments(self.mean_s + other.mean_s, self.variance + other.variance)

    def times(self, number: float) -> "Moments":
        """Moments of the sum of this number of independent times."""
        return Moments(number * self.mean_s, number * self.variance)


_AT_ONCE = Moments(0.0)


class Restarted(NamedTuple):
    """The time of work with restarts, and how often it began again."""

    time: Moments
    num_losses: float


def restarted(
    work_s: float, losses_per_s: float, recovery: Moments = _AT_ONCE, again_s: float | None = None
) -> Restarted:
    """Time of `work_s` seconds of work; after a loss and a recovery, `again_s` seconds (or as many) are before it.

    >>> daly_s = math.exp(0.01 * 5) * (math.exp(0.01 * 60) - 1) / 0.01
    >>> recovery = restarted(5.0, 0.01).time
    >>> math.isclose(restarted(60.0, 0.01, recovery).time.mean_s, daly_s)
    True
    """
    if losses_per_s == 0:
        return Restarted(Moments(work_s), 0.0)
    if losses_per_s * max(work_s, again_s or 0.0) > _MAX_EXPONENT:
        raise HopelessPlan(
            f"all members go back to a checkpoint every {format_duration(1 / losses_per_s)}, but "
            f"{format_duration(work_s)} of work have to be done between two checkpoints; give more replicas, more "
            "checkpoints, or other offers"
        )
    again = _repeated(work_s if again_s is None else again_s, losses_per_s, recovery)
    if again_s is None or again_s == work_s:
        return again
    done, first, second = _until_loss(work_s, losses_per_s)
    lost = 1 - done
    rest = recovery.plus(again.time)
    mean_s = done * work_s + first + lost * rest.mean_s
    square = done * work_s**2 + second + 2 * first * rest.mean_s + lost * rest.square
    return Restarted(Moments(mean_s, max(0.0, square - mean_s**2)), lost * (1 + again.num_losses))


def _repeated(work_s: float, losses_per_s: float, recovery: Moments) -> Restarted:
    """Work that begins from its start after every loss."""
    done, first, second = _until_loss(work_s, losses_per_s)
    lost = -math.expm1(-losses_per_s * work_s)
    mean_s = work_s + (first + lost * recovery.mean_s) / done
    square = (
        done * work_s**2
        + second
        + lost * recovery.square
        + 2 * first * recovery.mean_s
        + 2 * (first + lost * recovery.mean_s) * mean_s
    ) / done
    return Restarted(Moments(mean_s, max(0.0, square - mean_s**2)), lost / done)


def _until_loss(work_s: float, losses_per_s: float) -> tuple[float, float, float]:
    """P(X > w), E[X; X ≤ w] and E[X²; X ≤ w], where X is the time to the next loss."""
    exponent = losses_per_s * work_s
    done = math.exp(-exponent)
    if exponent < _SERIES_BELOW:  # the exact terms would cancel
        return (
            done,
            work_s * exponent * (1 / 2 - exponent / 3 + exponent**2 / 8),
            work_s**2 * exponent * (1 / 3 - exponent / 4 + exponent**2 / 10),
        )
    lost = -math.expm1(-exponent)
    first = lost / losses_per_s - work_s * done
    return done, first, 2 * lost / losses_per_s**2 - done * (work_s**2 + 2 * work_s / losses_per_s)
