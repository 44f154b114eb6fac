"""What a running member costs, as a function of time alone."""

import math

from msgspec import structs

from zooid.core.records import Record, require_at_least, require_positive
from zooid.core.resources.offer import Offer
from zooid.core.units import SECONDS_PER_HOUR

_CLOCK_S = 1e-6
"""Differences of Unix times are less precise than that. Without it, a millisecond would often be billed as two."""


def time_usd(usd_per_hour: float, running_s: float, grain_s: float, minimum_s: float) -> float:
    """Return the price of a member's time, rounded up to the billing grain, and at least the minimum."""
    num_billed = max(0, math.ceil((max(running_s, minimum_s) - _CLOCK_S) / grain_s))
    return num_billed * grain_s * usd_per_hour / SECONDS_PER_HOUR


class Tariff(Record, frozen=True, kw_only=True):
    """The price of one member from its start on."""

    started_at_s: float
    """Unix time of its start."""
    usd_per_hour: float
    billing_grain_s: float
    billing_minimum_s: float
    settled_usd: float = 0.0
    """What the member costs besides its time at this price: its start, and the difference to earlier prices."""

    def __post_init__(self) -> None:
        require_positive(self, "billing_grain_s")
        require_at_least(0, self, "usd_per_hour", "billing_minimum_s")

    @staticmethod
    def of(offer: Offer, started_at_s: float) -> "Tariff":
        """Return the tariff of a member that starts on an offer."""
        return Tariff(
            started_at_s=started_at_s,
            usd_per_hour=offer.usd_per_hour,
            billing_grain_s=offer.billing_grain_s,
            billing_minimum_s=offer.billing_minimum_s,
            settled_usd=offer.usd_per_start,
        )

    def usd_at(self, at_s: float) -> float:
        """Return the cost of the member if it ends at this time."""
        running_s = max(0.0, at_s - self.started_at_s)
        return self.settled_usd + time_usd(self.usd_per_hour, running_s, self.billing_grain_s, self.billing_minimum_s)

    def at_price(self, usd_per_hour: float, from_s: float) -> "Tariff":
        """Return the same member with another price from this time on.

        >>> tariff = Tariff(started_at_s=0.0, usd_per_hour=1.0, billing_grain_s=1.0, billing_minimum_s=0.0)
        >>> tariff.at_price(3.0, from_s=3600.0).usd_at(7200.0)
        4.0
        """
        running_h = max(0.0, from_s - self.started_at_s) / SECONDS_PER_HOUR
        difference_usd = (self.usd_per_hour - usd_per_hour) * running_h
        return structs.replace(self, usd_per_hour=usd_per_hour, settled_usd=self.settled_usd + difference_usd)
