"""Processes that are started while a run trains, to join it in the seats of a planned change."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from zooid.coordinator.runs.crew import Crew
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs.roster import RosterMember, RosterSeat
from zooid.core.runs.spec import WorkerSpec
from zooid.platforms import Platform
from zooid.store import ObjectStore
from zooid.store.planned_changes import read_plan_of


@dataclass(frozen=True)
class JoiningMembers:
    """Starts members of a plan in single seats, on the offers that the plan has for them."""

    store: ObjectStore
    number: int
    """Number of the claim under which members train."""
    platform: Platform
    crew: Crew
    spec: Callable[[RosterSeat, Offer, Plan], WorkerSpec]
    """Returns the spec of a member that trains in this seat of this plan."""
    is_avoided: Callable[[str], bool]
    """Returns whether nothing is started on the offer of this name for the moment."""

    def has_room(self, seats: Sequence[RosterSeat], plan_name: str) -> bool:
        """Whether members can be started in these seats now."""
        offers = _offers_of(seats, read_plan_of(self.store, self.number, plan_name))
        counts = Counter(offer.name for offer in offers)
        if any(map(self.is_avoided, counts)):
            return False
        return all(self.platform.has_room(number, name) for name, number in counts.items())

    def start(self, seats: Sequence[RosterSeat], plan_name: str) -> None:
        """Start a member for each of these seats, which waits to join."""
        plan = read_plan_of(self.store, self.number, plan_name)
        offers = _offers_of(seats, plan)
        specs = [
            structs.replace(
                self.spec(seat, offer, plan),
                joins_stage=seat.stage,
                plan=plan_name,
                roster=self.number,
                predicted_bytes=plan.stages[seat.stage].memory_bytes,
            )
            for seat, offer in zip(seats, offers, strict=True)
        ]
        self.crew.start("worker", specs, offers)

    def offer_of(self, member: str) -> str:
        """Return the name of a member's offer; empty if it does not run any more."""
        found = self.crew.ages().get(member)
        return "" if found is None else found[0].name


def replica_of(seat: RosterSeat) -> int:
    """Return the replica of a seat; copies count as members of the first one."""
    return seat.replica if isinstance(seat, RosterMember) else 0


def _offers_of(seats: Sequence[RosterSeat], plan: Plan) -> list[Offer]:
    """Return the offers of seats in this plan. Replicas beyond those of the plan are like its last one."""
    last = len(plan.offer_rows) - 1
    return [plan.offer_of(seat.stage, min(replica_of(seat), last)) for seat in seats]
