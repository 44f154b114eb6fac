"""The plans and planned changes that a member needs, each of which is read once: nobody changes them."""

from dataclasses import dataclass, field

from zooid.core.plans.plan import Plan
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.store import ObjectStore
from zooid.store.planned_changes import read_change, read_plan_of
from zooid.worker.member.hospitality import Span, Spans


@dataclass
class ChangeRecords:
    """Reads records ahead, so that no roster begins with waiting for the store."""

    store: ObjectStore
    number: int
    """Number of the claim."""
    _plans: dict[str, Plan] = field(default_factory=dict)
    _changes: dict[tuple[int, int], PlannedChange] = field(default_factory=dict)

    def change(self, roster: Roster, attempt: int) -> PlannedChange:
        """The change that is planned for this roster, or the one by which it has guests."""
        base = roster.change - 1 if roster.guests else roster.change
        if (base, attempt) not in self._changes:
            self._changes[base, attempt] = read_change(self.store, roster, attempt)
        return self._changes[base, attempt]

    def read_ahead(self, roster: Roster, change: PlannedChange) -> Spans:
        """Read what the roster with the guests of this change will need, and return the layers of its stages."""
        self._changes[change.change, change.attempt] = change
        return Spans(self._spans(roster.plan), self._spans(change.plan))

    def spans(self, roster: Roster) -> Spans:
        """The layers of all stages under this roster, and of its guests."""
        guests_plan = self.change(roster, roster.attempt).plan if roster.guests else roster.plan
        return Spans(self._spans(roster.plan), self._spans(guests_plan))

    def _spans(self, plan: str) -> tuple[Span, ...]:
        return tuple((stage.first_layer, stage.end_layer) for stage in self._plan(plan).stages)

    def _plan(self, name: str) -> Plan:
        if name not in self._plans:
            self._plans[name] = read_plan_of(self.store, self.number, name)
        return self._plans[name]
