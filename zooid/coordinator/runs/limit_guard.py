"""The limits of a run while it trains: members are told about them, and the user when they will not hold."""

import time

from msgspec import structs

from zooid.coordinator.policy.outlook import MIN_INTERVALS, danger, outlook
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.errors import PlanError, TrainingError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.allowance import Allowance
from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Event,
    LimitsEndangered,
    Metered,
    RosterChanged,
    RunningMember,
    RunStarted,
    StepCommitted,
)
from zooid.core.runs.spec import RunClaim
from zooid.core.units import format_usd
from zooid.schedule.step_window import StepWindow
from zooid.store import EventWriter, ObjectStore


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
        self._num_steps = 0
        """Number of steps of the whole run, which changes with the batch size."""
        self.num_done = 0
        self._num_saved = 0
        """Number of steps before the last checkpoint."""
        self._allowed: tuple[RunningMember, ...] = ()
        """The members whose cost others were told last."""
        self.danger = ""
        """Why the limits will not hold at the present pace; empty while they will."""
        self.is_steered = False
        """Whether the policy is asked when the limits will not hold, and tells whether another fleet can hold them."""
        self.is_switching = False
        """Whether members of another fleet start, so that the present pace and cost say nothing about the end."""

    @property
    def num_steps_left(self) -> int:
        return self._num_steps - self.num_done

    @property
    def num_steps_at_risk(self) -> int:
        """Number of steps since the last checkpoint."""
        return max(0, self.num_done - self._num_saved)

    @property
    def step_s(self) -> float | None:
        """The favourable 95 % bound of the present members' step time; None while it is not known."""
        return self._window.fastest_mean_s if self._window.num_intervals >= MIN_INTERVALS else None

    def begin(self, plan: Plan, first_step: int = 0) -> None:
        """Judge the run by its plan, from this step on."""
        self._plan, self._num_steps, self.num_done, self._num_saved = plan, plan.num_steps, first_step, first_step

    def allow(self) -> None:
        """Tell the members the limits and the cost, unless there are no limits."""
        if self._claim.has_limits:
            metered = self._meter.read(time.time())
            self._allowed = metered.running
            self._store.put(self._allowance_key, encode_record(self._allowance(metered)))

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
            self.num_done = event.step + 1
        elif isinstance(event, RosterChanged):  # other members have another pace
            self._window, self.danger = StepWindow(), ""
        elif isinstance(event, CheckpointSaved):
            self._num_saved = event.step
        elif isinstance(event, RunStarted | BatchChanged):
            self._num_steps = event.num_steps

    def judge(self, metered: Metered) -> None:
        """Report once when the limits will not hold at the measured pace, and tell members who else costs money.

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
        if metered.running != self._allowed:  # members have ended, which cost nothing any more
            self.allow()
        ahead = outlook(self._window, self.num_steps_left, allowance, metered.at_s)
        if ahead is None or self.is_switching:
            return
        reason, would_hold = danger(ahead, allowance)
        if reason and not self.danger and not self.is_steered:
            self._writer.write(LimitsEndangered(at_s=metered.at_s, reason=reason, would_hold=would_hold))
        self.danger = reason

    def _allowance(self, metered: Metered) -> Allowance:
        return self._meter.allowance(metered, self._claim.deadline_at_s, self._claim.budget_usd)
