"""One window of a spot trace, replayed with real members beside the same window in simulated time."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from lab.market_run import MarketRun
from lab.scaled_job import ScaledJob, scaled_job, scaled_offer
from lab.spot_windows import Window
from lab.spot_world import SimulatedRun, World
from zooid.core.plans.plan import Limits, Plan
from zooid.core.resources.offer import Offer
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import StepCommitted
from zooid.core.runs.steering import Steering
from zooid.platforms.local.spot_market import SpotMarket, Supply

NUM_GRAINS = 12
"""Grains of a step, which one to four members share evenly."""
CHECKPOINT_S = 600.0
_CALIBRATION_STEPS = 10


@dataclass(frozen=True)
class Rental:
    """The machine of all windows: its name in the catalog, and its price as a spot instance."""

    member: str
    spot_usd_per_hour: float

    def offers(self, factor: float, restart_s: float) -> tuple[Offer, Offer]:
        """The spot offer and the one on demand, in scaled time.

        The policy reckons with the boot delay and with `restart_s`, which a restart needs on this machine beside it.
        """
        own = scaled_offer(self.member, factor)
        assert own.startup_s is not None
        own = structs.replace(own, startup_s=own.startup_s + restart_s)
        spot_usd_per_hour = self.spot_usd_per_hour * factor
        spot = structs.replace(own, name=f"{own.name}.spot", market="spot", usd_per_hour=spot_usd_per_hour)
        return spot, own


@dataclass(frozen=True)
class Calibration:
    """What members need on this machine beside their boot delay and their planned computing."""

    start_s: float
    """Time from the end of the boot delay to the begin of the first step."""
    excess_s: float
    """Time by which a step is longer than planned."""
    prepare_s: float
    """Time from the command to the launch of the first members that train."""

    @property
    def restart_s(self) -> float:
        """Time, beside the boot delay, until a run that has lost all members trains again."""
        return self.prepare_s + self.start_s


def fleet_plans(job: ScaledJob, spot: Offer, own: Offer, num_wanted: int) -> list[Plan]:
    """Every mixture of spot and on-demand members, up to the wanted number; the last is all on demand."""
    return [
        job.plan([(offer, NUM_GRAINS // num_members) for offer in offers])
        for num_members in range(1, num_wanted + 1)
        for num_spot in range(num_members, -1, -1)
        if (offers := [spot] * num_spot + [own] * (num_members - num_spot))
    ]


def calibrate(folder: Path, rental: Rental, factor: float, num_wanted: int, step_s: float) -> Calibration:
    """Train a few steps on demand, with boot delay. `step_s` is the unscaled time of a step on all wanted members."""
    for name in ("warm", "measured"):  # the first run also waits until the platform can fork members
        measured = _calibrate(folder / name, rental, factor, num_wanted, step_s)
    return measured


def _calibrate(folder: Path, rental: Rental, factor: float, num_wanted: int, step_s: float) -> Calibration:
    spot, own = rental.offers(factor, 0.0)
    job = _job(folder, (spot, own), factor, num_wanted, step_s, _CALIBRATION_STEPS)
    plan = fleet_plans(job, spot, own, num_wanted)[-1]
    boot_s = own.startup_s or 0.0
    run = MarketRun(
        job=job,
        fleets=[plan],
        market=SpotMarket({own.name: Supply(boot_s=boot_s * factor)}, speed=factor, opens_with_members=True),
        url=(folder / "run").as_uri(),
        steering=Steering(offers=(own,), asks_planner=False, time_factor=factor),
        limits=Limits(deadline_s=3600.0),
        checkpoints=CheckpointRule(),
    ).play()
    commits_s = [event.at_s for event in run.events if isinstance(event, StepCommitted)]
    steps_s = [after_s - before_s for before_s, after_s in pairwise(commits_s)]
    measured_s = statistics.median(steps_s)
    assert run.opened_at_s is not None
    first_s = commits_s[0] - run.opened_at_s
    return Calibration(
        start_s=max(0.0, first_s - boot_s - measured_s),
        excess_s=max(0.0, measured_s - plan.prediction.step_s),
        prepare_s=run.opened_at_s - run.begun_at_s,
    )


@dataclass(frozen=True, kw_only=True)
class WindowReplay:
    """A job in a window: its limits are multiples of what it takes and costs on demand from the start."""

    window: Window
    rental: Rental
    calibration: Calibration
    factor: float
    """Number of seconds of the trace that pass in one second."""
    step_s: float
    """Planned time of a step on all wanted members, as the trace counts time."""
    num_steps: int
    deadline: float
    """The deadline as a multiple of the time on demand."""
    budget: float | None = None
    """The budget as a fraction of the cost on demand."""

    @property
    def world(self) -> World:
        """The same job in simulated time, with start-up and steps as they were measured."""
        spot, own = self.rental.offers(self.factor, self.calibration.restart_s)
        assert own.startup_s is not None
        world = World(
            trace=self.window.trace,
            first_sample=self.window.first_sample,
            num_steps=self.num_steps,
            step_s=self.step_s + self.calibration.excess_s * self.factor,
            usd_per_hour=own.usd_per_hour / self.factor,
            spot_usd_per_hour=spot.usd_per_hour / self.factor,
            startup_s=own.startup_s * self.factor,
            checkpoint_s=CHECKPOINT_S,
        )
        world = replace(world, deadline_s=world.on_demand_s * self.deadline)
        return world if self.budget is None else replace(world, budget_usd=world.on_demand_usd * self.budget)

    def simulate(self) -> SimulatedRun:
        return SimulatedRun(self.world).play()

    def simulate_restarts(self) -> SimulatedRun:
        return SimulatedRun(replace(self.world, is_elastic=False)).play()

    def run(self, folder: Path, seed: int) -> MarketRun:
        """Replay the window with real members."""
        num_wanted, world = self.window.trace.num_wanted, self.world
        spot, own = offers = self.rental.offers(self.factor, self.calibration.restart_s)
        job = _job(folder, offers, self.factor, num_wanted, self.step_s, self.num_steps)
        boot_s = world.startup_s - self.calibration.restart_s * self.factor
        supplies = {spot.name: Supply(self.window.spot_trace, boot_s), own.name: Supply(boot_s=boot_s)}
        market = SpotMarket(supplies, from_s=self.window.from_s, speed=self.factor, seed=seed, opens_with_members=True)
        assert world.deadline_s is not None
        return MarketRun(
            job=job,
            fleets=fleet_plans(job, spot, own, num_wanted),
            market=market,
            url=(folder / "run").as_uri(),
            steering=Steering(
                offers=offers,
                max_members=num_wanted,
                seeks_savings=True,
                asks_planner=False,
                look_s=self.window.trace.gap_s / self.factor,
                time_factor=self.factor,
            ),
            limits=Limits(deadline_s=world.deadline_s / self.factor, budget_usd=world.budget_usd),
            checkpoints=CheckpointRule(every_s=CHECKPOINT_S / self.factor),
            prepare_s=self.calibration.prepare_s,
            excess_s=self.calibration.excess_s,
        ).play()


def holds(run: MarketRun, world: World, factor: float) -> bool:
    """Whether a run stayed within its budget, and ended by its deadline or said that nothing can hold its limits."""
    assert world.deadline_s is not None
    is_done = run.result is not None and not run.stopped and run.end_s * factor <= world.deadline_s
    if world.budget_usd is None:
        return is_done
    return run.usd <= world.budget_usd and (is_done or run.warned_s is not None)


def largest_factor(gap_s: float, boot_s: float, join_s: float) -> float:
    """The largest whole factor at which new members boot and join within one sample of the trace.

    The boot delay is shortened by the factor; what members then need to join on this machine is not.

    >>> largest_factor(300.0, 150.0, 1.5)
    100.0
    """
    return float(math.floor((gap_s - boot_s) / join_s))


def _job(
    folder: Path, offers: Sequence[Offer], factor: float, num_wanted: int, step_s: float, num_steps: int
) -> ScaledJob:
    folder.mkdir(parents=True, exist_ok=True)
    grain_s = step_s * num_wanted / NUM_GRAINS / factor
    return scaled_job(folder, num_steps, NUM_GRAINS, {offer.name: grain_s for offer in offers})
