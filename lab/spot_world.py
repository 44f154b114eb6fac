"""A run in simulated time on spot members that come and go by a recorded trace, steered by the policy of real runs.

The work of a run is divided evenly among its members, so that its speed grows with their number. Members that stay keep
the state of the run. If all are preempted at once, the steps since the last checkpoint are lost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from zooid.coordinator.policy.avoidance import Loss
from zooid.coordinator.policy.next_move import NextMove, decide
from zooid.coordinator.policy.situation import FleetOption, MarketOffer, Situation

SPOT, ON_DEMAND = "spot", "on demand"
Decide = Callable[[Situation, Sequence[FleetOption]], NextMove]


@dataclass(frozen=True)
class Trace:
    """How many of the wanted spot members could be had, one number every `gap_s`."""

    name: str
    gap_s: float
    available: tuple[int, ...]

    @cached_property
    def num_wanted(self) -> int:
        return max(self.available)

    def at(self, number: int) -> int:
        """Return the number of available members in a sample; none after the end."""
        return self.available[number] if number < len(self.available) else 0


@dataclass(frozen=True, kw_only=True)
class World:
    """The market and the job of a simulated run."""

    trace: Trace
    first_sample: int = 0
    """The sample of the trace at which the run begins."""
    num_steps: float
    step_s: float
    """Time of a step on all wanted members."""
    usd_per_hour: float
    """Price of one member on demand."""
    spot_usd_per_hour: float
    startup_s: float
    checkpoint_s: float = 600.0
    """Time between two checkpoints."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    is_elastic: bool = True
    """Whether the run goes on with the members that are left. Otherwise it restarts from its last checkpoint whenever
    one is lost, and always needs all wanted members."""

    @property
    def on_demand_s(self) -> float:
        """Time of the run on demand from the start."""
        return self.startup_s + self.num_steps * self.step_s

    @property
    def on_demand_usd(self) -> float:
        return self.on_demand_s * self.trace.num_wanted * self.usd_per_hour / 3600

    @property
    def least_usd(self) -> float:
        """Lower bound of the cost of any run within the deadline, even for one that knows the trace.

        It uses every second of every available spot member until the work is done, and on-demand members for what is
        left. Members start in no time, and nothing is ever lost.
        """
        assert self.deadline_s is not None
        work_s = self.num_steps * self.step_s * self.trace.num_wanted
        spot_s, left_s = 0.0, self.deadline_s
        number = self.first_sample
        while left_s > 0 and number < len(self.trace.available):
            length_s = min(self.trace.gap_s, left_s)
            spot_s += length_s * min(self.trace.at(number), self.trace.num_wanted)
            left_s, number = left_s - length_s, number + 1
        on_spot_s = min(work_s, spot_s)
        return (on_spot_s * self.spot_usd_per_hour + (work_s - on_spot_s) * self.usd_per_hour) / 3600

    def options(self) -> tuple[FleetOption, ...]:
        """Return every fleet: any mixture of spot and on-demand members, or all wanted members of one kind."""
        return fleets(self.trace.num_wanted, self.step_s, self.is_elastic)


@lru_cache
def fleets(num_wanted: int, step_s: float, is_elastic: bool) -> tuple[FleetOption, ...]:
    pairs = [(spot, own) for spot in range(num_wanted + 1) for own in range(num_wanted + 1 - spot) if spot + own > 0]
    if not is_elastic:
        pairs = [(num_wanted, 0), (0, num_wanted)]
    return tuple(_fleet(spot, own, step_s * num_wanted) for spot, own in pairs)


def _fleet(num_spot: int, num_on_demand: int, work_s: float) -> FleetOption:
    members = ((SPOT, num_spot), (ON_DEMAND, num_on_demand))
    return FleetOption(
        tuple((offer, number) for offer, number in members if number > 0), work_s / (num_spot + num_on_demand)
    )


@dataclass
class SimulatedRun:
    """What became of a simulated run."""

    world: World
    now_s: float = 0.0
    num_done: float = 0.0
    num_saved: float = 0.0
    """Number of steps in the last checkpoint."""
    usd: float = 0.0
    is_complete: bool = False
    num_preemptions: int = 0
    num_switches: int = 0
    warned_s: float | None = None
    """When the run first said that nothing can hold its limits."""
    stopped: str = ""
    losses: list[Loss] = field(default_factory=list)
    _fleet: FleetOption | None = None
    _saved_s: float = 0.0

    @property
    def holds_deadline(self) -> bool:
        return self.is_complete and (self.world.deadline_s is None or self.now_s <= self.world.deadline_s + 1e-6)

    def play(self, policy: Decide = decide) -> "SimulatedRun":
        """Run to the end of the job, of its limits or of the trace."""
        gap_s, number = self.world.trace.gap_s, self.world.first_sample
        while not (self.is_complete or self.stopped) and number < len(self.world.trace.available):
            self._lose(self.world.trace.at(number))
            situation = self._situation(number)
            move = policy(situation, self.world.options())
            if move.warning and self.warned_s is None:
                self.warned_s = self.now_s
            is_refused = bool(move.warning) and not situation.has_begun  # what cannot hold its limits is not begun
            if is_refused or move.kind == "stop":
                self.stopped = move.warning or move.because
                break
            self._advance(move.fleet, gap_s)
            number += 1
        return self

    def _situation(self, number: int) -> Situation:
        world = self.world
        available = world.trace.at(number)
        offers = {
            SPOT: MarketOffer(
                name=SPOT,
                usd_per_hour=world.spot_usd_per_hour,
                num_available=available,
                startup_s=world.startup_s,
                is_reliable=False,
            ),
            ON_DEMAND: MarketOffer(
                name=ON_DEMAND,
                usd_per_hour=world.usd_per_hour,
                num_available=world.trace.num_wanted,
                startup_s=world.startup_s,
            ),
        }
        return Situation(
            now_s=self.now_s,
            look_s=world.trace.gap_s,
            num_steps_left=world.num_steps - self.num_done,
            num_steps_at_risk=self.num_done - self.num_saved,
            spent_usd=self.usd,
            current=self._fleet,
            offers=offers,
            losses=tuple(self.losses),
            deadline_at_s=world.deadline_s,
            budget_usd=world.budget_usd,
        )

    def _lose(self, available: int) -> None:
        """Take away the spot members that are no longer available."""
        if self._fleet is None:
            return
        num_spot = self._fleet.counts.get(SPOT, 0)
        num_lost = max(0, num_spot - available)
        if num_lost == 0:
            return
        self.losses += [Loss(SPOT, self.now_s)] * num_lost
        self.num_preemptions += num_lost
        left = (num_spot - num_lost, self._fleet.counts.get(ON_DEMAND, 0))
        if sum(left) == 0 or not self.world.is_elastic:
            self._fleet = None
            self.num_done = self.num_saved
        else:
            self._fleet = _fleet(*left, self.world.step_s * self.world.trace.num_wanted)

    def _advance(self, target: FleetOption | None, length_s: float) -> None:
        """Train for one sample. New members are started first, while the present ones train on."""
        before = self._fleet
        if before is not None and target != before:
            self.num_saved = self.num_done  # a planned change loses nothing
            self.num_switches += 1
        running = {} if before is None else before.counts
        starting = [] if target is None else [
            (offer, number - running.get(offer, 0))
            for offer, number in target.members
            if number > running.get(offer, 0)
        ]  # fmt: skip
        startup_s = min(self.world.startup_s, length_s) if starting else 0.0
        assert self.world.startup_s <= length_s, "members are ready before the next look"
        for phase_s, fleet, also in ((startup_s, before, starting), (length_s - startup_s, target, [])):
            if not (self.is_complete or self.stopped):
                self._train(fleet, phase_s, self._usd_per_s(also))
        self._fleet = target

    def _train(self, fleet: FleetOption | None, length_s: float, starting_usd_per_s: float) -> None:
        usd_per_s = starting_usd_per_s + (0.0 if fleet is None else self._usd_per_s(fleet.members))
        if fleet is not None:
            needed_s = (self.world.num_steps - self.num_done) * fleet.step_s
            allowed_s = self._allowed_s(usd_per_s)
            if needed_s <= min(length_s, allowed_s) + 1e-9:
                length_s, self.is_complete = needed_s, True
            elif allowed_s < length_s:  # members stop by themselves at the hard limit
                length_s, self.stopped = allowed_s, "a limit is reached"
            self.num_done += length_s / fleet.step_s
            self._save(self.now_s, self.now_s + length_s, fleet.step_s)
        self.usd += length_s * usd_per_s
        self.now_s += length_s

    def _allowed_s(self, usd_per_s: float) -> float:
        """Return how long members may go on at this cost."""
        world = self.world
        time_s = math.inf if world.deadline_s is None else world.deadline_s - self.now_s
        if world.budget_usd is not None and usd_per_s > 0:
            time_s = min(time_s, (world.budget_usd - self.usd) / usd_per_s)
        return max(0.0, time_s)

    def _save(self, begin_s: float, end_s: float, step_s: float) -> None:
        """Note the last checkpoint in this time."""
        num_due = int((end_s - self._saved_s) // self.world.checkpoint_s)
        if num_due > 0:
            self._saved_s = max(begin_s, self._saved_s + num_due * self.world.checkpoint_s)
            self.num_saved = max(self.num_saved, self.num_done - (end_s - self._saved_s) / step_s)

    def _usd_per_s(self, members: Sequence[tuple[str, int]]) -> float:
        prices = {SPOT: self.world.spot_usd_per_hour, ON_DEMAND: self.world.usd_per_hour}
        return sum(prices[offer] * number for offer, number in members) / 3600
