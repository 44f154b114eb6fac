"""A run with real members on a market of this machine, steered by the policy from its begin to its last step.

The policy is asked here before the run begins, and by the run itself from then on.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from lab.scaled_job import ScaledJob
from zooid.coordinator.runs.continued_run import ask_without_members
from zooid.coordinator.runs.fleet_options import FleetMarket, best_by_fleet
from zooid.coordinator.runs.rehearsed_job import rehearse_job
from zooid.coordinator.runs.relay import OnEvent, ignore
from zooid.coordinator.runs.run_progress import RunResult
from zooid.core.errors import PlanError, TrainingError
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Limits, Plan
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import (
    Event,
    FleetChosen,
    LimitsEndangered,
    Metered,
    RosterChanged,
    RunStarted,
    StepCommitted,
)
from zooid.core.runs.steering import Steering
from zooid.platforms.local.spot_market import SpotMarket


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

    def play(self) -> "MarketRun":
        """Run to the end of the job or of its limits."""
        self.begun_at_s = time.time()
        plan = self.first or self._wait_for_fleet()
        if plan is None:
            return self
        try:
            self.result = self._begin(plan)
            self.stopped = self.result.stopped
        except TrainingError as error:  # a limit is reached while nobody trains
            self.stopped = str(error)
        except PlanError as error:  # told before the first step
            self.stopped, self.warned_s = str(error), self._since_opening_s(time.time())
        return self

    def _wait_for_fleet(self) -> Plan | None:
        """The plan on which the policy begins; None if it finds that nothing can hold the limits any more."""
        plans = best_by_fleet(self.fleets)
        market = FleetMarket(self.steering, self.market.has_room, lambda offer: offer.usd_per_hour)
        while True:
            now_s = time.time()
            deadline_s, since_s = self.limits.deadline_s, self._since_opening_s(now_s)
            move = ask_without_members(
                self.steering,
                market,
                plans,
                num_steps_left=self.job.whole.num_steps,
                deadline_at_s=None if deadline_s is None else now_s - since_s + deadline_s,
                budget_usd=self.limits.budget_usd,
                excess_s=self.excess_s,
            )
            if move.warning:
                self.warned_s = since_s
            if move.warning or move.kind == "stop":  # what cannot hold its limits is not begun
                self.stopped = move.warning or move.because
                return None
            if move.fleet is not None:
                return plans[move.fleet.key]
            self._open(now_s)
            time.sleep(self.steering.look_s)

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
    def num_resumes(self) -> int:
        """How often the run has gone on from its last checkpoint, because all members were lost."""
        return max(0, sum(isinstance(event, RunStarted) for event in self.events) - 1)

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
