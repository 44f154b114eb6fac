"""Runs on spot members that come and go as recorded, beside runs on demand and beside one that knows the future.

Reads the availability traces of spot V100 instances (skypilot-org/spot-traces): how many of the wanted instances were
up, one number every few minutes. Every trace is played from its beginning to its end, one job after the other, in
simulated time and through the same policy that real runs ask. A job takes eight hours on all wanted members on demand.
Its deadline is 1, 1.25, 1.5 or 2 times that. Prices and the start-up time are those of the catalog.

- `held`: every job has ended by its deadline. On demand from the start, every job would.
- `usd_vs_on_demand`: the cost beside that of members on demand from the start
- `usd_vs_oracle`: the cost beside a lower bound for any run that knows the trace, whose members start in no time
- `restart_vs_on_demand`: the cost of the same policy without elasticity, which restarts all members from the last
  checkpoint whenever one is lost
- `for_good_vs_on_demand`: the cost if a preempted offer is never used again by a job, as Srifty does

Rows with a budget give jobs half of what they cost on demand, and twice the time. `held` then means that each job
stayed within its budget, and ended by its deadline or said that nothing can hold the limits. `told` is the number of
jobs that said so.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness import Row, run_benchmark
from lab.spot_world import SPOT, SimulatedRun, Trace, World
from zooid import catalog
from zooid.coordinator.policy.next_move import NextMove, decide
from zooid.coordinator.policy.situation import FleetOption, Situation

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "spot"
HOURS = 8.0
STEP_S = 10.0
FACTORS, QUICK_FACTORS = (1.0, 1.25, 1.5, 2.0), (1.25,)
BUDGET_FRACTION = 0.5
QUICK_JOBS = 10
MEMBER = "aws.ec2.p3.2xlarge"
SPOT_PAIR = ("aws.ec2.p3.8xlarge.spot", "aws.ec2.p3.8xlarge")
"""Offers whose prices give the discount of spot members; the catalog has none of the small machine."""


@dataclass(frozen=True)
class Setting:
    """The limits of all jobs of a row."""

    factor: float
    """The deadline as a multiple of the time on demand."""
    has_budget: bool = False


def read_traces(folder: Path) -> list[Trace]:
    """Read every trace in a folder; none if it does not exist."""
    traces = []
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text())
        traces.append(Trace(file.stem, content["metadata"]["gap_seconds"], tuple(content["data"])))
    return traces


def jobs_of(trace: Trace, setting: Setting) -> Iterator[World]:
    """One job after the other, each from the first sample after the deadline of the one before."""
    member = catalog.offer(MEMBER)
    spot, on_demand = (catalog.offer(name).usd_per_hour for name in SPOT_PAIR)
    assert member.startup_s is not None
    first = 0
    while True:
        job = World(
            trace=trace,
            first_sample=first,
            num_steps=HOURS * 3600 / STEP_S,
            step_s=STEP_S,
            usd_per_hour=member.usd_per_hour,
            spot_usd_per_hour=member.usd_per_hour * spot / on_demand,
            startup_s=member.startup_s,
        )
        job = replace(job, deadline_s=job.on_demand_s * setting.factor)
        if setting.has_budget:
            job = replace(job, budget_usd=job.on_demand_usd * BUDGET_FRACTION)
        assert job.deadline_s is not None
        first += int(job.deadline_s // trace.gap_s) + 1
        if first >= len(trace.available):
            return
        yield job


def without_lost_offers(situation: Situation, options: Sequence[FleetOption]) -> NextMove:
    """Decide as usual, but never start anything on an offer that was preempted before."""
    if situation.losses:
        running = 0 if situation.current is None else situation.current.counts.get(SPOT, 0)
        kept = replace(situation.offers[SPOT], num_available=min(running, situation.offers[SPOT].num_available))
        situation = replace(situation, offers={**situation.offers, SPOT: kept}, losses=())
    return decide(situation, options)


def play(trace: Trace, setting: Setting, max_jobs: int | None) -> Row:
    """Play all jobs of a trace, and return the totals."""
    on_demand_usd = oracle_usd = usd = restart_usd = for_good_usd = 0.0
    num_jobs = num_held = num_told = num_preempted = 0
    for job in jobs_of(trace, setting):
        if num_jobs == max_jobs:
            break
        run = SimulatedRun(job).play()
        num_jobs += 1
        if job.budget_usd is None:
            num_held += run.holds_deadline
        else:
            is_told = run.warned_s is not None
            num_told += is_told
            num_held += run.usd <= job.budget_usd and (run.holds_deadline or is_told)
        num_preempted += run.num_preemptions
        usd += run.usd
        on_demand_usd += job.on_demand_usd
        oracle_usd += job.least_usd
        restart_usd += SimulatedRun(replace(job, is_elastic=False)).play().usd
        for_good_usd += SimulatedRun(job).play(without_lost_offers).usd
    return {
        "trace": trace.name,
        "deadline": setting.factor,
        "budget": BUDGET_FRACTION if setting.has_budget else None,
        "jobs": num_jobs,
        "preempted": num_preempted,
        "held": num_held == num_jobs,
        "told": num_told if setting.has_budget else None,
        "usd_vs_on_demand": round(usd / on_demand_usd, 3),
        "usd_vs_oracle": round(usd / oracle_usd, 3),
        "restart_vs_on_demand": round(restart_usd / on_demand_usd, 3),
        "for_good_vs_on_demand": round(for_good_usd / on_demand_usd, 3),
    }


def settings(quick: bool) -> list[Setting]:
    return [*(Setting(factor) for factor in (QUICK_FACTORS if quick else FACTORS)), Setting(2.0, has_budget=True)]


def measure(traces: Sequence[Trace]) -> Callable[[bool], Iterator[Row]]:
    def rows(quick: bool) -> Iterator[Row]:
        for trace in traces:
            for setting in settings(quick):
                yield play(trace, setting, QUICK_JOBS if quick else None)

    return rows


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the traces")
    given, rest = parser.parse_known_args()
    traces = read_traces(given.data)
    if not traces:
        print(f"skipped: no spot traces (*.json) in {given.data}; --data names another folder", file=sys.stderr)
        return
    title = "runs on recorded spot availability"
    run_benchmark(title, measure(traces), lambda quick: len(traces) * len(settings(quick)), arguments=rest)


if __name__ == "__main__":
    main()
