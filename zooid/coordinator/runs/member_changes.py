"""Everything that changes who trains while a run goes on, and who may ask for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from msgspec import structs

from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.fleet_options import FleetMarket
from zooid.coordinator.runs.fleet_steering import FleetSteering
from zooid.coordinator.runs.incoming_requests import IncomingRequests
from zooid.coordinator.runs.joining_members import JoiningMembers, replica_of
from zooid.coordinator.runs.lifetimes import Lifetimes
from zooid.coordinator.runs.live_bill import LiveBill
from zooid.coordinator.runs.policy_scaling import PolicyScaling
from zooid.coordinator.runs.requested_changes import RequestedChanges
from zooid.coordinator.runs.roster_changes import RosterChanges
from zooid.coordinator.runs.run_progress import RunProgress
from zooid.coordinator.runs.steering_rules import earlier_losses, steering_of
from zooid.core.plans.plan import FixedLayout, Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import Event, MemberExited, PriceChanged, RosterChanged, ScalingWanted
from zooid.core.runs.roster import RosterSeat
from zooid.core.runs.spec import RunClaim, WorkerSpec
from zooid.core.runs.steering import Steering
from zooid.platforms import Platform
from zooid.store import ObjectStore
from zooid.store.planned_changes import write_changed_plan
from zooid.store.rosters import read_roster


class SpecOf(Protocol):
    """Returns the spec of a member."""

    def __call__(
        self,
        member: str,
        task: Literal["plan", "train"],
        offer: Offer,
        given: Plan | FixedLayout,
        replica: int = 0,
    ) -> WorkerSpec: ...


@dataclass(frozen=True, kw_only=True)
class RunChanges:
    """Follows lifetimes, requests, the job's scaling policy, and the policy of the limits."""

    store: ObjectStore
    claim: RunClaim
    number: int
    """Number of the claim under which members train."""
    platform: Platform
    crew: Crew
    plan: Plan
    """The plan that members follow."""
    plan_name: str
    """Name of that plan in the store; empty if it is the plan of the claim."""
    fleets: Sequence[Plan]
    """Other plans, from which the policy of the limits may choose."""
    bill: LiveBill
    progress: RunProgress
    spec: SpecOf
    tell: Callable[[Event], None]
    begun_s: float
    """Unix time at which the members were started."""
    has_earlier_claims: bool

    def poll(self) -> None:
        for part in (self._steering, self._requested, self._lifetimes, self._scaling, self._changes):
            if part is not None:
                part.poll()

    def close(self) -> None:
        """Leave a search for other members to itself, if there is one."""
        if (steering := self.__dict__.get("_steering")) is not None:
            steering.close()

    def take(self, event: Event) -> None:
        """Learn from an event of the run."""
        match event:
            case RosterChanged() if event.ruling != "planned":
                self.replace_lost()
            case PriceChanged() if self._steering is not None:
                self._steering.take(event)
            case ScalingWanted() if event.num_replicas is not None:
                self._keep_wishes()
        if self._scaling is not None:
            self._scaling.take(event)

    def note_exit(self, event: MemberExited) -> None:
        """Note that a member was lost."""
        if self._steering is not None:
            self._steering.note_exit(event)
            if self.progress.is_waiting(event.member):
                self._steering.note_fewer_members()

    def replace_lost(self) -> None:
        """Replace lost members, or let the policy choose others."""
        if self._steering is None:
            self._refill()
        else:
            self._steering.note_fewer_members()

    def _refill(self) -> None:
        """Replace lost members on the offers of the plan."""
        self._changes.refill(read_roster(self.store, self.number).copies)

    def _keep_wishes(self) -> None:
        """Let nobody change the number of members to save money, because somebody has asked for it."""
        if self._steering is not None:
            self._steering.seeks_savings = False

    @cached_property
    def _changes(self) -> RosterChanges:
        joining = JoiningMembers(
            self.store,
            self.number,
            self.platform,
            self.crew,
            lambda seat, offer, plan: self.spec(seat.name, "train", offer, plan, replica_of(seat)),
            lambda offer: self._steering is not None and self._steering.avoids(offer),
        )

        def start(seats: Sequence[RosterSeat], plan_name: str) -> None:
            joining.start(seats, plan_name)
            self.bill.guard.allow()  # from now on, the run costs more

        folder = keys.specs_under(self.number)
        return RosterChanges(
            self.store,
            self.number,
            start,
            self.crew.has_ended,
            joining.has_room,
            joining.offer_of,
            self.crew.dismiss,
            taken={key.removeprefix(f"{folder}/").removesuffix(".json") for key in self.store.list(folder)},
            is_insured=self.plan.insured,
        )

    @cached_property
    def _scaling(self) -> PolicyScaling | None:
        """Follows the scaling policy, if the members' transport lets others join."""
        if not self.plan.survives_losses:
            return None
        return PolicyScaling(self._changes, len(self.plan.stages), self.begun_s, len(self.crew.members))

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        return Lifetimes(self._changes, self.crew.ages)

    @cached_property
    def _requested(self) -> RequestedChanges:
        """What people and members ask of this run."""

        def start_planner(name: str, layout: FixedLayout) -> None:
            spec = structs.replace(self.spec(name, "plan", layout.offer, layout), plan=name, roster=self.number)
            self.crew.start("worker", [spec], [layout.offer])

        requests = IncomingRequests(self.store, self.number)
        ends = (start_planner, self.crew.has_ended, self._keep_wishes)
        return RequestedChanges(self.store, self.number, requests, self._changes, *ends)

    @cached_property
    def _steering(self) -> FleetSteering | None:
        """Lets the policy choose other members, if there are others to choose."""
        rules = steering_of(self.store, self.claim, self.plan, self.fleets)
        if rules is None:
            return None
        return FleetSteering(
            market=FleetMarket(rules, self.platform.has_room, self.bill.meter.usd_per_hour),
            claim=self.claim,
            guard=self.bill.guard,
            changes=self._changes,
            present=self._present_offers,
            read_bill=self.bill.read,
            find_fleets=self._find_fleets,
            write_plan=lambda chosen: write_changed_plan(self.store, "fleet", chosen),
            refill=self._refill,
            tell=self.tell,
            plan=self.plan,
            plan_name=self.plan_name,
            fleets=list(self.fleets),
            seeks_savings=rules.seeks_savings,
            losses=earlier_losses(self.store, rules) if self.has_earlier_claims else [],
        )

    def _present_offers(self) -> list[Offer]:
        """Return the offers of all members that train now."""
        seated = self.progress.seated or frozenset()
        return [offer for member, (offer, _) in self.crew.ages().items() if member in seated]

    def _find_fleets(
        self, priced: Steering, running: Mapping[str, int], quotas: Mapping[str, int], step: int
    ) -> Sequence[Plan]:
        from zooid.coordinator.plans.remaining_fleets import remaining_fleets  # it imports the planner

        return remaining_fleets(self.store, self.plan, priced, running, quotas, step)
