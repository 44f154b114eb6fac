"""A run with real members on a market of this machine, steered by the policy from its begin to its last step.

While members train, the run itself asks the policy. While there are none, since all were lost or none can be had, it is
asked here, and the run is resumed on the fleet that it chooses.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from lab.scaled_job import ScaledJob
from zooid.coordinator.policy.avoidance import Loss
from zooid.coordinator.policy.next_move import NextMove, decide
from zooid.coordinator.policy.situation import Situation
from zooid.coordinator.runs.cleanup import clear_earlier
from zooid.coordinator.runs.fleet_options import FleetMarket, best_by_fleet, option_of
from zooid.coordinator.runs.rehearsed_job import rehearse_job
from zooid.coordinator.runs.relay import OnEvent, ignore
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.supervision import Run
from zooid.core.errors import CheckpointError, MemberFailed, PlanError, TrainingError
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Limits, Plan
from zooid.core.runs.allowance import EXIT_S
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import (
    Event,
    FleetChosen,
    LimitsEndangered,
    MemberExited,
    Metered,
    RosterChanged,
    RunStarted,
    StepCommitted,
)
from zooid.core.runs.steering import Steering
from zooid.platforms.local.spot_market import SpotMarket
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step, sweep_incomplete
from zooid.store.claims import last_claim
from zooid.store.stored_records import read_plan


@dataclass
class MarketRun:
    """A run on a market, and what its events told. All times are those of this machine."""

    job: ScaledJob
    fleets: Sequence[Plan]
    """All plans from which the policy chooses."""
    market: SpotMarket
    url: str
    steering: Steering
    limits: Limits
    """Limits that count from when the market opens."""
    checkpoints: CheckpointRule
    prepare_s: float = 0.0
    """Expected time from the command to the opening of the market, which the deadline does not include."""
    excess_s: float = 0.0
    """Time by which a step is longer than planned on this machine."""
    first: Plan | None = None
    """The plan on which the run begins; None if the policy chooses it."""
    on_event: OnEvent = ignore
    result: RunResult | None = None
    """The end of the run; None if it was not reached."""
    events: list[Event] = field(default_factory=list)
    begun_at_s: float = 0.0
    """Unix time of the command."""
    opened_at_s: float | None = None
    """Unix time at which the market opened; None before that."""
    warned_s: float | None = None
    """Time from the opening until the run first said that nothing can hold its limits."""
    stopped: str = ""
    num_resumes: int = 0

    def play(self) -> "MarketRun":
        """Run to the end of the job or of its limits."""
        self.begun_at_s = time.time()
        if self.first is not None:
            self._train(self.first)
        while self.result is None and not self.stopped:
            move = self._ask()
            if move.warning and self.warned_s is None:
                self.warned_s = self._since_opening_s(time.time())
            if move.kind == "stop":
                self.stopped = move.because
            elif move.fleet is None:
                self._open(time.time())
                time.sleep(self.steering.look_s)
            else:
                self._train(best_by_fleet(self.fleets)[move.fleet.key])
        return self

    def _train(self, plan: Plan) -> None:
        """Begin or resume on this plan, until the end or until all members are lost."""
        try:
            self.result = self._resume(plan) if self.has_begun else self._begin(plan)
            self.stopped = self.result.stopped
        except (MemberFailed, CheckpointError):
            if self.market.num_killed == 0:  # the market is not to blame
                raise
            self.num_resumes += 1
        except TrainingError as error:  # a limit is reached before the next step
            self.stopped = str(error)
        except PlanError as error:  # told before the first step
            self.stopped, self.warned_s = str(error), self._since_opening_s(time.time())

    @property
    def has_begun(self) -> bool:
        return any(isinstance(event, RunStarted) for event in self.events)

    def _open(self, at_s: float) -> None:
        if self.opened_at_s is None:
            self.opened_at_s = at_s
            self.market.open()

    def _begin(self, plan: Plan) -> RunResult:
        elapsed_s = self._since_opening_s(time.time())
        limits = self.limits
        if limits.deadline_s is not None:
            limits = structs.replace(limits, deadline_s=limits.deadline_s - elapsed_s + self.prepare_s)
        return rehearse_job(
            self.job.file,
            plan,
            RehearsalPace(profiles=dict(self.job.profiles)),
            store=self.url,
            checkpoints=self.checkpoints,
            limits=limits,
            steering=self.steering,
            fleets=self.fleets,
            on_event=self._take,
            platform=self.market,
        )

    def _resume(self, plan: Plan) -> RunResult:
        """Continue from the last checkpoint, as `zooid resume` does, with the same limits and fleets."""
        store = open_store(self.url)
        before, claim = last_claim(store)
        number = before + 1
        claim = structs.replace(claim, nonce=secrets.token_hex(8))
        with Run(store, claim, number, self.market, self._take) as run:
            run.carry_over_costs(read_plan(store, before))
            sweep_incomplete(store)
            clear_earlier(store, claim.run, number)
            run.check(plan)
            return run.train(plan, last_step(store), fleets=self.fleets)

    def _ask(self) -> NextMove:
        """Ask the policy while nobody trains."""
        plans = best_by_fleet(self.fleets)
        options = [replace(each, step_s=each.step_s + self.excess_s) for each in map(option_of, plans.values())]
        market = FleetMarket(self.steering, self.market.has_room, lambda offer: offer.usd_per_hour)
        now_s = time.time()
        deadline_s, budget_usd = self.limits.deadline_s, self.limits.budget_usd
        situation = Situation(
            now_s=now_s,
            look_s=self.steering.look_s,
            num_steps_left=self.job.whole.num_steps - self._num_saved(),
            spent_usd=self.usd,
            current=None,
            offers=market.offers(list(plans.values()), {}),
            losses=tuple(self._losses()),
            deadline_at_s=None if deadline_s is None else now_s - self._since_opening_s(now_s) + deadline_s,
            budget_usd=budget_usd,
            closing_s=EXIT_S + max(option.step_s for option in options),
            time_factor=self.steering.time_factor,
        )
        return decide(situation, options)

    def _num_saved(self) -> int:
        store = open_store(self.url)
        return 0 if store.is_empty() else last_step(store)

    def _losses(self) -> list[Loss]:
        """Members that the market has killed; those of one look count as one preemption."""
        spot = {offer.name for offer in self.steering.offers if offer.market == "spot"}
        losses: list[Loss] = []
        for event in self.events:
            if isinstance(event, MemberExited) and event.offer in spot:
                is_same = bool(losses) and event.at_s - losses[-1].at_s < self.steering.look_s
                losses.append(Loss(event.offer, losses[-1].at_s if is_same else event.at_s))
        return losses

    def _take(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._open(event.at_s)
        if isinstance(event, LimitsEndangered) and self.warned_s is None:
            self.warned_s = self._since_opening_s(event.at_s)
        self.events.append(event)
        self.on_event(event)

    def _since_opening_s(self, at_s: float) -> float:
        return 0.0 if self.opened_at_s is None else at_s - self.opened_at_s

    @property
    def usd(self) -> float:
        """Cost of the run so far."""
        bills = [event.usd for event in self.events if isinstance(event, Metered)]
        return self.result.usd if self.result is not None else bills[-1] if bills else 0.0

    @property
    def end_s(self) -> float:
        """Time from the opening of the market to the last step."""
        commits_s = [event.at_s for event in self.events if isinstance(event, StepCommitted)]
        return self._since_opening_s(max(commits_s)) if commits_s else 0.0

    @property
    def num_redone(self) -> int:
        steps = [event.step for event in self.events if isinstance(event, StepCommitted)]
        return len(steps) - len(set(steps))

    @property
    def num_switches(self) -> int:
        return sum(isinstance(event, FleetChosen) for event in self.events)

    def changes_s(self) -> list[float]:
        """Times from the choice of a fleet until it had its roster."""
        times: dict[float, float] = {}
        chosen_s: float | None = None
        for event in self.events:
            if isinstance(event, FleetChosen):
                chosen_s = event.at_s
            elif isinstance(event, RosterChanged) and event.ruling == "planned" and chosen_s is not None:
                times[chosen_s] = event.at_s - chosen_s  # after that of its guests, the roster with their seats
        return list(times.values())
