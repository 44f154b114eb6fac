"""Steering of a run: the policy is asked while it trains, and another fleet is started where it wants one.

The policy is asked when members were lost, when a limit would break and when a price has changed, and regularly. Before
it is asked for one of these reasons, the planner searches for fleets anew, in a thread: with the steps that are left,
the offers that can be had, present prices, and what the run has measured.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from zooid.coordinator.policy.avoidance import Loss, is_avoided
from zooid.coordinator.policy.next_move import NextMove, can_be_had, decide, project
from zooid.coordinator.policy.situation import FleetOption, Situation
from zooid.coordinator.runs.fleet_options import (
    FleetKey,
    FleetMarket,
    best_by_fleet,
    counts_in,
    cuts_of,
    keeps_members,
    key_of,
    option_of,
    sorted_counts,
    with_present_first,
)
from zooid.coordinator.runs.limit_guard import LimitGuard
from zooid.coordinator.runs.roster_changes import RosterChanges, WantedChange
from zooid.core.errors import ZooidError
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs.allowance import EXIT_S
from zooid.core.runs.events import Event, FleetChosen, LimitsEndangered, MemberExited, Metered, PriceChanged
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.steering import Steering

logger = logging.getLogger(__name__)

FindFleets = Callable[[Steering, Mapping[str, int], Mapping[str, int], int], Sequence[Plan]]
"""(rules with present prices, present and largest numbers of members by offer, the next step) -> plans for the rest."""


@dataclass
class FleetSteering:
    """Decides who trains on, while a run trains."""

    market: FleetMarket
    claim: RunClaim
    guard: LimitGuard
    changes: RosterChanges
    present: Callable[[], Sequence[Offer]]
    """Returns the offers of all members that train now."""
    read_bill: Callable[[], Metered]
    find_fleets: FindFleets
    write_plan: Callable[[Plan], str]
    """Writes a plan to the store, and returns its name."""
    refill: Callable[[], None]
    """Asks for new members in the place of lost ones, on the same offers."""
    tell: Callable[[Event], None]
    plan: Plan
    """The plan that members follow."""
    fleets: list[Plan]
    """All plans from which the policy may choose."""
    losses: list[Loss] = field(default_factory=list)
    plan_name: str = ""
    """Name of that plan in the store; empty if it is the plan of the claim."""
    seeks_savings: bool = False
    """Whether the run switches to save money; no longer after somebody else has chosen the number of its members."""
    _reasons: list[str] = field(default_factory=list)
    """What has happened since the policy was last asked."""
    _lost: list[str] = field(default_factory=list)
    """Members without which the others have not gone on yet."""
    _has_lost: bool = False
    """Whether a member was lost since the policy was last asked."""
    _has_danger: bool = False
    _is_news: bool = False
    """Whether something has happened of which the planner does not know yet."""
    _wanted: WantedChange | None = None
    """The change that leads to the chosen fleet; None if there is none."""
    _chosen: tuple[Plan, str] | None = None
    """The plan of that fleet, and its name in the store."""
    _last_step_s: float = 0.0
    """Step time that was last known."""
    _last_counts: tuple[tuple[str, int], ...] = ()
    """The fleet to which it belongs."""
    _looked_s: float = field(default_factory=time.monotonic)
    _is_warned: bool = False
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="zooid-fleets"))
    _searching: "Future[Sequence[Plan]] | None" = None

    def __post_init__(self) -> None:
        self.guard.is_steered = True

    @property
    def steering(self) -> Steering:
        return self.market.steering

    @property
    def is_switching(self) -> bool:
        """Whether another fleet was chosen that does not train yet."""
        return self._wanted is not None and self._wanted in self.changes.wanted

    def take(self, event: PriceChanged) -> None:
        """Note that a price has changed."""
        self._note(f"the price of {event.offer} has changed")

    def _note(self, reason: str) -> None:
        self._reasons.append(reason)
        self._is_news = True

    def note_exit(self, event: MemberExited) -> None:
        """Note that a member was killed. Of a spot offer, this is a preemption."""
        self._lost.append(event.member)
        offer = next((offer for offer in self.steering.offers if offer.name == event.offer), None)
        if offer is None or offer.market != "spot":
            return
        # members that are lost within one look count as one preemption
        recent = [loss.at_s for loss in self.losses if loss.offer == offer.name]
        is_same = bool(recent) and event.at_s - recent[-1] < self.steering.look_s
        self.losses.append(Loss(offer.name, recent[-1] if is_same else event.at_s))

    def note_fewer_members(self) -> None:
        """Note that the others go on without a lost member, or that one was lost before it could join."""
        lost, self._lost = self._lost, []
        self._has_lost = True
        self._note(f"{' and '.join(lost)} was lost" if lost else "members were lost")

    def avoids(self, offer: str) -> bool:
        """Whether an offer was preempted so lately that nothing is started on it."""
        return is_avoided(offer, self.losses, time.time(), self.steering.time_factor)

    def poll(self) -> None:
        """Ask the policy if it is time for that, and begin to carry out what it wants."""
        self._note_arrival()
        self.guard.is_switching = self.is_switching
        if self.guard.danger and not self._has_danger:
            self._note(self.guard.danger)
        self._has_danger = bool(self.guard.danger)
        if self._searching is not None:
            if not self._searching.done():
                return
            self._take_found(self._searching)
        elif self._is_news and self.steering.asks_planner:
            self._search()
            return
        is_due = time.monotonic() - self._looked_s >= self.steering.look_s
        if not (self._reasons or is_due) or not self.present():
            return
        if self.is_switching and not (self._has_lost or self.changes.is_blocked):
            return
        self._decide()

    def _note_arrival(self) -> None:
        """Note that the chosen fleet trains, unless its members have failed."""
        if self._wanted is None or self.is_switching:
            return
        if self._chosen is not None and counts_in(self._chosen[0]) == self._present_counts():
            self.plan, self.plan_name = self._chosen
        self._wanted = self._chosen = None

    def _present_counts(self) -> tuple[tuple[str, int], ...]:
        return sorted_counts(offer.name for offer in self.present())

    def _search(self) -> None:
        """Let the planner look for fleets while the run trains on."""
        self._is_news = False
        running = Counter(offer.name for offer in self.present())
        quotas = self.market.quotas(running, self.avoids)
        arguments = (self.market.priced_steering(), running, quotas, self.guard.num_done)
        self._searching = self._pool.submit(self.find_fleets, *arguments)

    def _take_found(self, searching: "Future[Sequence[Plan]]") -> None:
        self._searching = None
        try:
            found = searching.result()
        except ZooidError as error:
            logger.warning("the planner finds no other fleet: %s", error)
            return
        searched = {offer.name for plan in found for offer in plan.member_offers}
        others = [plan for plan in self.fleets if not {offer for offer, _ in counts_in(plan)} <= searched]
        self.fleets = [*found, *others]  # what was known of the others is older than what the run has measured

    def _decide(self) -> None:
        reasons, has_lost = self._reasons, self._has_lost
        self._reasons, self._has_lost, self._looked_s = [], False, time.monotonic()
        metered = self.read_bill()
        plans = best_by_fleet(self._predicted())
        situation = self._situation(metered, list(plans.values()))
        if has_lost and not self.seeks_savings and self._can_restore(situation):
            self._restore()
            return
        slowness = self._slowness(situation, plans)
        move = decide(situation, [option_of(plan, slowness) for plan in plans.values()])
        self._warn(move, metered.at_s)
        if move.kind != "switch" or move.fleet is None:
            return
        assert move.fleet.key in plans, "only fleets with a plan can be chosen"
        reason = " and ".join(dict.fromkeys(reasons)) or "a better fleet can be had"
        self._switch(plans[move.fleet.key], situation, move, reason)

    def _predicted(self) -> list[Plan]:
        """Return all plans with predictions; that of the present plan only if it was not predicted anew."""
        is_known = self.plan.predicted is None or key_of(self.plan) in map(key_of, self.fleets)
        return self.fleets if is_known else [self.plan, *self.fleets]

    def _slowness(self, situation: Situation, plans: Mapping[FleetKey, Plan]) -> float:
        """Return how many times as long a step takes on the present fleet as predicted; 1 if that is not known.

        Others are taken to differ as much, or else a fleet would look better only because nobody has measured it yet.
        """
        present = situation.current
        if self.guard.step_s is None or present is None or present.key not in plans:
            return 1.0
        return present.step_s / plans[present.key].prediction.step_s

    def _restore(self) -> None:
        """Replace lost members on their own offers."""
        if self.plan.replica_offers and keeps_members(self.plan, self.plan):
            self._wanted = self.changes.hire(self.plan, self.plan_name, "members were lost")
            self._chosen = (self.plan, self.plan_name)
        else:
            self.refill()

    def close(self) -> None:
        """Leave a search to itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _can_restore(self, situation: Situation) -> bool:
        """Whether lost members can be replaced on the same offers, as in a run without limits."""
        return can_be_had(situation, FleetOption(counts_in(self.plan), 0.0, cuts_of(self.plan)))

    def _situation(self, metered: Metered, plans: Sequence[Plan]) -> Situation:
        running = Counter(offer.name for offer in self.present())
        step_s = self._step_s(running)
        members_usd_per_s = sum(member.tariff.usd_per_hour for member in metered.running) / 3600
        return Situation(
            now_s=metered.at_s,
            look_s=self.steering.look_s,
            num_steps_left=self.guard.num_steps_left,
            num_steps_at_risk=self.guard.num_steps_at_risk,
            spent_usd=metered.usd,
            current=FleetOption(sorted_counts(running.elements()), step_s, cuts_of(self.plan)),
            offers=self.market.offers([self.plan, *plans], running, self.changes.startups.longest_s),
            losses=tuple(self.losses),
            deadline_at_s=self.claim.deadline_at_s,
            budget_usd=self.claim.budget_usd,
            closing_s=EXIT_S + step_s,  # members stop before a step that might end too late
            other_usd_per_s=max(0.0, metered.usd_per_s - members_usd_per_s),
            seeks_savings=self.seeks_savings,
            time_factor=self.steering.time_factor,
        )

    def _step_s(self, running: Mapping[str, int]) -> float:
        """The step time of the present members: measured, planned, or longer by the shares of those that are gone."""
        counts = sorted_counts(Counter(running).elements())
        if (measured_s := self.guard.step_s) is not None:
            self._last_step_s, self._last_counts = measured_s, counts
            return measured_s
        for plan in (self.plan, *self.fleets):
            if plan.predicted is not None and key_of(plan) == (cuts_of(self.plan), counts):
                return plan.prediction.step_s
        before_s, before = self._last_step_s, dict(self._last_counts)
        if not before:
            before, before_s = dict(counts_in(self.plan)), self.plan.predicted.step_s if self.plan.predicted else 0.0
        return before_s * sum(before.values()) / max(1, sum(running.values()))

    def _warn(self, move: NextMove, now_s: float) -> None:
        """Tell once that nothing can hold the limits."""
        if move.warning and not self._is_warned:
            self.tell(LimitsEndangered(at_s=now_s, reason=move.warning, would_hold=move.would_hold))
        self._is_warned = bool(move.warning)

    def _switch(self, plan: Plan, situation: Situation, move: NextMove, reason: str) -> None:
        """Start the members of another fleet, or of the chosen one as far as they are missing."""
        chosen = move.fleet
        assert chosen is not None, "the policy switches to a fleet"
        is_same = chosen.key == key_of(self.plan)
        if self.is_switching:
            assert self._wanted is not None
            goes_on = self._chosen is not None and chosen.key == key_of(self._chosen[0])
            if goes_on or not self.changes.withdraw(self._wanted):
                return
        self._wanted = None
        cause = f"{reason}: {move.because}"
        name = self.plan_name
        if keeps_members(plan, self.plan):
            plan = with_present_first(plan, Counter(offer.name for offer in self.present()))
            name = self.write_plan(plan)
            self._wanted = self.changes.hire(plan, name, cause)
        elif is_same:
            self.refill()
        elif chosen.cuts == cuts_of(self.plan):
            self._wanted = self.changes.scale(plan.num_replicas, cause)
        else:
            name = self.write_plan(plan)
            self._wanted = self.changes.follow(plan, name, cause)
        self._chosen = (plan, name)
        ahead = project(situation, chosen)
        self.tell(
            FleetChosen(
                at_s=situation.now_s,
                plan=name,
                fleet=str(chosen),
                reason=reason,
                because=move.because,
                end_at_s=ahead.end_at_s,
                usd=ahead.usd,
            )
        )
