"""The limits of a run while it trains: members are told about them, and the user when they will not hold."""

import time
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from zooid.coordinator.policy.next_move import NextMove, decide
from zooid.coordinator.policy.outlook import danger, outlook
from zooid.coordinator.policy.situation import FleetOption, MarketOffer, Situation
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.errors import PlanError, TrainingError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.allowance import Allowance
from zooid.core.runs.events import BatchChanged, Event, LimitsEndangered, Metered, RunStarted, StepCommitted
from zooid.core.runs.spec import RunClaim
from zooid.core.units import format_usd
from zooid.schedule.step_window import StepWindow
from zooid.store import EventWriter, ObjectStore

_LOOK_S = 10.0
"""Time between two judgements, as the policy counts with it."""


class LimitGuard:
    """Judges whether a run will hold the limits of its claim."""

    def __init__(self, store: ObjectStore, writer: EventWriter, meter: RunMeter, claim: RunClaim, roster: int) -> None:
        """`claim` has the limits of the members that were or will be started under the claim number `roster`."""
        self._store = store
        self._writer = writer
        self._meter = meter
        self._claim = claim
        self._allowance_key = keys.allowance(roster)
        self._window = StepWindow()
        self._plan: Plan | None = None
        self._alternatives: Sequence[Plan] = ()
        self._num_steps = 0
        """Number of steps of the whole run, which changes with the batch size."""
        self._num_done = 0
        self._last_danger = ""
        """The last reason why limits were endangered; empty while they are not."""

    def begin(self, plan: Plan, alternatives: Sequence[Plan] = ()) -> None:
        """Judge the run by its plan. `alternatives` are other plans that the search has found."""
        self._plan, self._alternatives, self._num_steps = plan, alternatives, plan.num_steps

    def allow(self) -> None:
        """Tell the members the limits and the cost, unless there are no limits."""
        if self._claim.has_limits:
            allowance = self._allowance(self._meter.read(time.time()))
            self._store.put(self._allowance_key, encode_record(allowance))

    def remaining(self, limits: Limits) -> Limits:
        """Return these limits of a plan, less what the run has already taken and cost."""
        now_s = time.time()
        deadline_s, budget_usd = limits.deadline_s, limits.budget_usd
        if self._claim.deadline_at_s is not None:
            deadline_s = self._claim.deadline_at_s - now_s
            if deadline_s <= 0:
                raise PlanError("the deadline has passed before the first step; allow more time")
        if self._claim.budget_usd is not None:
            spent_usd = self._meter.read(now_s).usd
            budget_usd = self._claim.budget_usd - spent_usd
            if budget_usd <= 0:
                raise PlanError(
                    f"the budget of {format_usd(self._claim.budget_usd)} is spent before the first step: the run has "
                    f"cost {format_usd(spent_usd)}; allow more"
                )
        return structs.replace(limits, deadline_s=deadline_s, budget_usd=budget_usd)

    def take(self, event: Event) -> None:
        if isinstance(event, StepCommitted):
            self._window.add(event.at_s)
            self._num_done = event.step + 1
        elif isinstance(event, RunStarted | BatchChanged):
            self._num_steps = event.num_steps

    def judge(self, metered: Metered) -> None:
        """Report once when the limits will not hold at the measured pace.

        Raises TrainingError if a limit is reached before the first step.
        """
        if not self._claim.has_limits or self._plan is None:
            return
        allowance = self._allowance(metered)
        is_starting = self._meter.trains_from_s is None
        if is_starting and allowance.reason_to_stop(metered.at_s, 0.0, 0.0):  # later, members judge by themselves
            raise TrainingError(
                f"a limit of the run in {self._store.url} was reached before its first step: it has cost "
                f"{format_usd(metered.usd)}; allow more with --deadline or --budget of `zooid resume`"
            )
        ahead = outlook(self._window, self._num_steps - self._num_done, allowance, metered.at_s)
        if ahead is None:
            return
        reason, would_hold = danger(ahead, allowance)
        if reason and not self._last_danger:
            move = self._next_move(self._plan, metered)
            if move.kind == "switch" and not move.warning:
                would_hold = f"the plan {move.fleet} would hold: zooid stop, then zooid resume with it; or {would_hold}"
            self._writer.write(LimitsEndangered(at_s=metered.at_s, reason=reason, would_hold=would_hold))
        self._last_danger = reason

    def _allowance(self, metered: Metered) -> Allowance:
        return self._meter.allowance(metered, self._claim.deadline_at_s, self._claim.budget_usd)

    def _next_move(self, plan: Plan, metered: Metered) -> NextMove:
        """Ask the policy, with the plans that the search has found as the market."""
        plans = [plan, *(other for other in self._alternatives if other.predicted is not None)]
        prices = {member.offer: member.tariff.usd_per_hour for member in metered.running}
        offers = {
            offer.name: MarketOffer(
                name=offer.name,
                usd_per_hour=prices.get(offer.name, offer.usd_per_hour),
                num_available=max(Counter(o.name for o in each.member_offers)[offer.name] for each in plans),
                startup_s=offer.startup_s or 0.0,
                is_reliable=offer.market != "spot",
            )
            for each in plans
            for offer in each.offers
        }
        situation = Situation(
            now_s=metered.at_s,
            look_s=_LOOK_S,
            num_steps_left=self._num_steps - self._num_done,
            spent_usd=metered.usd,
            current=_option(plan, self._window.fastest_mean_s or 0.0),
            offers=offers,
            deadline_at_s=self._claim.deadline_at_s,
            budget_usd=self._claim.budget_usd,
        )
        return decide(situation, [_option(other, other.prediction.step_s) for other in plans[1:]])


def _option(plan: Plan, step_s: float) -> FleetOption:
    counts = Counter(offer.name for offer in plan.member_offers)
    return FleetOption(tuple(sorted(counts.items())), step_s, f"{plan.layout} on {', '.join(sorted(counts))}")
