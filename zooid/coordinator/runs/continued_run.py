"""A run that has lost all of its members: the policy waits for others or chooses them, and the run is resumed.

It goes on from its last checkpoint, with the limits that it has. While nobody trains, it costs nothing but storage.
"""

import contextlib
import logging
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from zooid.coordinator.policy.avoidance import Loss, is_avoided
from zooid.coordinator.policy.next_move import NextMove, decide
from zooid.coordinator.policy.situation import Situation
from zooid.coordinator.runs.cleanup import clear_earlier
from zooid.coordinator.runs.fleet_options import FleetKey, FleetMarket, best_by_fleet, option_of
from zooid.coordinator.runs.live_bill import spent_before
from zooid.coordinator.runs.relay import OnEvent
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.steering_rules import earlier_losses
from zooid.coordinator.runs.supervision import Run
from zooid.core.errors import CheckpointError, MemberFailed, ObjectNotFound, PlanError, TrainingError, ZooidError
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.allowance import EXIT_S, PriceList
from zooid.core.runs.events import LimitsEndangered, PhaseStarted, RosterChanged, RunStarted, StepCommitted
from zooid.core.runs.steering import Steering
from zooid.platforms import Platform
from zooid.schedule.samples import samples_of
from zooid.store import ObjectStore, read_history
from zooid.store.checkpoint_index import complete_steps, last_step, read_manifest, sweep_incomplete
from zooid.store.claims import last_claim
from zooid.store.stored_records import read_plan, read_record

logger = logging.getLogger(__name__)

_MAX_FRUITLESS = 10
"""Number of resumes without a new checkpoint after which a run gives up."""


def continue_or_raise(
    failure: MemberFailed | CheckpointError,
    store: ObjectStore,
    platform: Platform,
    on_event: OnEvent,
    fleets: Sequence[Plan] = (),
) -> RunResult:
    """Continue a run that has lost all members, if its folder has rules for that; otherwise raise the failure.

    `fleets` are plans with predictions, from which the policy may choose beside those that the planner finds.
    """
    try:
        rules = read_record(store, keys.STEERING, Steering)
    except ObjectNotFound:
        raise failure from None
    if not _is_loss(failure) or not complete_steps(store):
        raise failure
    return _ContinuedRun(store, platform, on_event, rules, fleets).play(failure)


def ask_without_members(
    rules: Steering,
    market: FleetMarket,
    plans: Mapping[FleetKey, Plan],
    *,
    num_steps_left: int,
    deadline_at_s: float | None,
    budget_usd: float | None,
    spent_usd: float = 0.0,
    losses: Sequence[Loss] = (),
    excess_s: float = 0.0,
) -> NextMove:
    """Ask the policy on which fleet a run should begin or go on that has no members now.

    Steps are expected to take `excess_s` longer than predicted.
    """
    options = [replace(each, step_s=each.step_s + excess_s) for each in map(option_of, plans.values())]
    situation = Situation(
        now_s=time.time(),
        look_s=rules.look_s,
        num_steps_left=num_steps_left,
        spent_usd=spent_usd,
        current=None,
        offers=market.offers(list(plans.values()), {}),
        losses=tuple(losses),
        deadline_at_s=deadline_at_s,
        budget_usd=budget_usd,
        closing_s=EXIT_S + max((option.step_s for option in options), default=0.0),
        time_factor=rules.time_factor,
    )
    return decide(situation, options)


def _is_loss(failure: ZooidError) -> bool:
    """Whether members were killed, so that others may do better. A member that failed by itself would fail again."""
    return isinstance(failure, CheckpointError) or (isinstance(failure, MemberFailed) and not failure.cause)


@dataclass
class _ContinuedRun:
    store: ObjectStore
    platform: Platform
    on_event: OnEvent
    rules: Steering
    fleets: Sequence[Plan]
    _is_warned: bool = field(default=False)
    _is_waiting: bool = field(default=False)

    def play(self, failure: ZooidError) -> RunResult:
        num_fruitless, saved = 0, last_step(self.store)
        while num_fruitless < _MAX_FRUITLESS:
            plans = best_by_fleet(self._plans())
            move = self._ask(plans)
            self._warn(move)
            if move.kind == "stop":
                raise TrainingError(
                    f"the run in {self.store.url} has lost all members and stops at its checkpoint of step {saved}: "
                    f"{move.because}; `zooid resume {self.store.url}` continues it with other limits"
                ) from failure
            if move.fleet is None:
                self._wait(move.because)
                continue
            self._is_waiting = False
            try:
                return self._resume(plans[move.fleet.key])
            except (MemberFailed, CheckpointError) as error:
                if not _is_loss(error):
                    raise
                logger.warning("all members were lost again: %s", error)
                failure = error
            before, saved = saved, last_step(self.store)
            num_fruitless = num_fruitless + 1 if saved == before else 0
        raise failure

    def _plans(self) -> list[Plan]:
        """All plans that can be chosen now, with the predictions that are known best."""
        number, _ = last_claim(self.store)
        last = read_plan(self.store, number)
        known = [plan for plan in (last, *self.fleets) if plan.predicted is not None]
        if not self.rules.asks_planner:
            return known
        from zooid.coordinator.plans.remaining_fleets import remaining_fleets  # it imports the planner

        market, losses = self._market, earlier_losses(self.store, self.rules)
        quotas = market.quotas({}, lambda offer: is_avoided(offer, losses, time.time(), self.rules.time_factor))
        with contextlib.suppress(PlanError):
            found = remaining_fleets(self.store, last, market.priced_steering(), {}, quotas, last_step(self.store))
            return [*found, *known]
        return known

    @property
    def _market(self) -> FleetMarket:
        return FleetMarket(self.rules, self.platform.has_room, self._usd_per_hour)

    def _usd_per_hour(self, offer: Offer) -> float:
        """The present price of an offer."""
        with contextlib.suppress(ObjectNotFound):
            listed = read_record(self.store, keys.PRICES, PriceList).price_of(offer.name)
            return offer.usd_per_hour if listed is None else listed
        return offer.usd_per_hour

    def _ask(self, plans: Mapping[FleetKey, Plan]) -> NextMove:
        number, claim = last_claim(self.store)
        manifest = read_manifest(self.store, last_step(self.store))
        return ask_without_members(
            self.rules,
            self._market,
            plans,
            num_steps_left=samples_of(manifest).num_steps - manifest.step,
            deadline_at_s=claim.deadline_at_s,
            budget_usd=claim.budget_usd,
            spent_usd=spent_before(self.store, number + 1),
            losses=earlier_losses(self.store, self.rules),
            excess_s=self._excess_s(),
        )

    def _excess_s(self) -> float:
        """Return the median excess of measured over predicted step times, where all members of a plan have trained.

        It is 0 if there are no such steps, or if they were faster.
        """
        excesses: list[float] = []
        predicted_s: float | None = None
        for event in read_history(self.store):
            if isinstance(event, RunStarted):
                predicted_s = event.predicted_step_s
            elif isinstance(event, RosterChanged):
                predicted_s = None
            elif isinstance(event, StepCommitted) and predicted_s is not None:
                excesses.append(event.step_s - predicted_s)
        return max(0.0, statistics.median(excesses)) if excesses else 0.0

    def _warn(self, move: NextMove) -> None:
        """Tell once that nothing can hold the limits."""
        if move.warning and not self._is_warned:
            self.on_event(LimitsEndangered(at_s=time.time(), reason=move.warning, would_hold=move.would_hold))
        self._is_warned = bool(move.warning)

    def _wait(self, because: str) -> None:
        if not self._is_waiting:
            self.on_event(PhaseStarted(at_s=time.time(), phase=f"waiting for members, because {because}"))
        self._is_waiting = True
        time.sleep(self.rules.look_s)

    def _resume(self, plan: Plan) -> RunResult:
        """Continue from the last checkpoint, with the same limits."""
        before, claim = last_claim(self.store)
        number = before + 1
        claim = structs.replace(claim, nonce=secrets.token_hex(8))
        with Run(self.store, claim, number, self.platform, self.on_event) as run:
            run.carry_over_costs(read_plan(self.store, before))
            sweep_incomplete(self.store)
            clear_earlier(self.store, claim.run, number)
            run.check(plan)
            return run.train(plan, last_step(self.store), fleets=self.fleets)
