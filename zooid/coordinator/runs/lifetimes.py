"""Members whose offers end them after a time, such as functions, are handed over to successors before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zooid.coordinator.plans.offer_names import enforced_lifetime_s
from zooid.coordinator.runs.roster_changes import RosterChanges
from zooid.core.resources.offer import Offer
from zooid.core.units import format_duration
from zooid.schedule.successor_lead import successor_lead_s


@dataclass
class Lifetimes:
    """Asks for successors in time."""

    changes: RosterChanges
    ages: Callable[[], Mapping[str, tuple[Offer, float]]]
    """Returns the offer of every running member, and the seconds since its start."""
    _succeeded: set[str] = field(default_factory=set)

    def poll(self) -> None:
        """Ask for successors of members that will soon be ended."""
        if not self.changes.wanted:
            self._succeeded.clear()  # who is still here has no successor, since that change was given up
        joining_s = self.changes.startups.longest_s
        limited = {
            name: (lifetime_s, age_s, successor_lead_s(lifetime_s, joining_s, offer.startup_s or 0.0))
            for name, (offer, age_s) in self.ages().items()
            if (lifetime_s := enforced_lifetime_s(offer)) is not None and name not in self._succeeded
        }
        due = {name for name, (life_s, age_s, lead_s) in limited.items() if age_s > life_s - lead_s}
        if due:
            # those that follow soon go along, so that the roster changes once for all of them
            due |= {name for name, (life_s, age_s, lead_s) in limited.items() if age_s > life_s - 1.5 * lead_s}
            self._succeeded |= due
            shortest_s = min(limited[name][0] for name in due)
            self.changes.succeed(due, f"members live for {format_duration(shortest_s)} only")
