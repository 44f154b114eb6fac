"""How long an offer is avoided after it was preempted.

Srifty takes a preemption as a sign that an offer is depleted, and never uses it again (§4.5, §5.4). Its runs last for
minutes. In runs of hours, offers come back: giving one up for good after its first preemption means to pay the price on
demand for the rest. So an offer is avoided for a while, and for twice as long after each further preemption.
"""

from collections.abc import Iterable
from dataclasses import dataclass

FIRST_PAUSE_S = 300.0
"""Pause after the first preemption: about one sample of the public availability traces."""
MAX_PAUSE_S = 3600.0
MEMORY_S = 6 * 3600.0
"""Preemptions before this time are forgotten."""


@dataclass(frozen=True)
class Loss:
    """A member that was preempted."""

    offer: str
    at_s: float


def avoided_until_s(offer: str, losses: Iterable[Loss], now_s: float) -> float:
    """Return until when an offer is avoided; a time in the past if it may be used.

    Members that are lost at the same moment count as one preemption.

    >>> avoided_until_s("spot", [Loss("spot", 0.0), Loss("spot", 0.0)], 10.0)
    300.0
    >>> avoided_until_s("spot", [Loss("spot", 0.0), Loss("spot", 1000.0)], 1010.0)
    1600.0
    """
    moments = sorted({loss.at_s for loss in losses if loss.offer == offer and loss.at_s > now_s - MEMORY_S})
    if not moments:
        return now_s
    return moments[-1] + min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (len(moments) - 1))


def is_avoided(offer: str, losses: Iterable[Loss], now_s: float, time_factor: float = 1.0) -> bool:
    """Whether an offer is avoided, if so many seconds of the market pass in one second of these times."""
    scaled = [Loss(loss.offer, loss.at_s * time_factor) for loss in losses]
    return avoided_until_s(offer, scaled, now_s * time_factor) > now_s * time_factor
