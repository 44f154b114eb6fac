"""What a run may still take and cost. Members read it, so that limits hold even without a coordinator."""

import math

from zooid.core.records import FileRecord, require_at_least
from zooid.core.resources.tariff import Tariff
from zooid.core.units import format_duration, format_usd

EXIT_S = 1.0
"""Time from the last checkpoint until all members are known to have ended, which is billed as well."""


class PriceList(FileRecord, frozen=True, kw_only=True, tag="prices"):
    """Prices of offers from now on. A run looks for it in its folder while it trains."""

    usd_per_hour: dict[str, float]
    """Price of one member by the name of its offer, such as `aws.lambda.1769`."""

    def __post_init__(self) -> None:
        for name, usd in self.usd_per_hour.items():
            if not (math.isfinite(usd) and usd >= 0):
                raise ValueError(f"the price of {name} is {usd}; give dollars per hour, 0 or more")

    def price_of(self, offer_name: str) -> float | None:
        """Return the price of an offer by its full name, or by its name in the catalog; None if it is not listed."""
        by_full_name = self.usd_per_hour.get(offer_name)
        return self.usd_per_hour.get(offer_name.rpartition(":")[2]) if by_full_name is None else by_full_name


class Allowance(FileRecord, frozen=True, kw_only=True, tag="allowance"):
    """The limits of a run, and its cost as a function of time as long as its members stay the same."""

    at_s: float
    """Unix time at which this was written."""
    deadline_at_s: float | None = None
    """Unix time at which the run must have ended; None if it may take any time."""
    budget_usd: float | None = None
    """Largest cost of the whole run; None if it may cost anything."""
    tariffs: tuple[Tariff, ...]
    """Prices of the members that run."""
    other_usd: float = 0.0
    """Cost so far of everything but these members' time: earlier members, requests, storage and traffic."""
    other_usd_per_s: float = 0.0
    """How fast that cost grows."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "other_usd", "other_usd_per_s")

    def usd_at(self, at_s: float) -> float:
        """Return the cost of the whole run if its members end at this time."""
        members_usd = math.fsum(tariff.usd_at(at_s) for tariff in self.tariffs)
        return members_usd + self.other_usd + self.other_usd_per_s * max(0.0, at_s - self.at_s)

    def reason_to_stop(self, now_s: float, step_s: float, closing_s: float) -> str:
        """Say why no further step may begin now; empty if one may.

        A step takes up to `step_s`, and the last checkpoint and the end take `closing_s`.
        """
        end_s = now_s + step_s + closing_s
        if self.deadline_at_s is not None and end_s > self.deadline_at_s:
            late = format_duration(end_s - self.deadline_at_s)
            return f"another step and the last checkpoint would end {late} after its deadline"
        if self.budget_usd is not None and (usd := self.usd_at(end_s)) > self.budget_usd:
            return (
                f"with another step and the last checkpoint it would cost {format_usd(usd)}, "
                f"and its budget is {format_usd(self.budget_usd)}"
            )
        return ""
