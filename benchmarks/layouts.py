"""Steps, run times and costs of the digits example on several layouts: predicted before members start, and measured.

The job is that of `make demo`, at the prices of a function. A cost is that of the members that train and of the store,
without the member that prepares the run. The plain loop beside is ordinary PyTorch in one process with one thread, on
the same data. Members have one thread each and share this machine's cores, which bounds what a layout can gain.

Errors are predicted over measured, minus 1.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import zooid
from benchmarks.harness import Row, run_benchmark
from lab.load import ForeignLoad
from zooid.core.environment import member_environment
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Limits
from zooid.core.plans.profile import Profile
from zooid.predictor.costs.bill import PREPARATION

JOB_FILE = Path(__file__).parent / "jobs" / "digits_short.py"
LAYOUTS = ((1, 1), (2, 1), (1, 2), (2, 2))
QUICK_LAYOUTS = ((1, 2),)
OFFER = "local:aws.lambda.1769"


def layouts(quick: bool) -> tuple[tuple[int, int], ...]:
    return QUICK_LAYOUTS if quick else LAYOUTS


def measure(quick: bool) -> Iterator[Row]:
    plain_s = plain_step_s()
    profile = zooid.profile(JOB_FILE)
    for layout in layouts(quick):
        with ForeignLoad() as foreign:
            row = measure_layout(profile, *layout)
        measured_s = float(row["step_s"] or 0.0)
        yield {**row, "speed_vs_plain": plain_s / measured_s, "foreign_cores": foreign.num_cores}


def measure_layout(profile: Profile, num_replicas: int, num_stages: int) -> Row:
    """Plan a layout from the profile, then train it."""
    limits = Limits(num_replicas=num_replicas, num_stages=num_stages)
    plan = zooid.plan(JOB_FILE, measured=profile, limits=limits, on=OFFER)
    with tempfile.TemporaryDirectory() as folder:
        result = zooid.train(JOB_FILE, store=f"file://{folder}/run", plan=plan)
    predicted = plan.prediction
    usd = math.fsum(term.usd for term in result.cost_terms if term.kind != PREPARATION)
    return {
        "layout": plan.layout,
        "grain": plan.grain_size,
        "predicted_step_s": predicted.step_s,
        "step_s": result.step_s,
        "step_error": predicted.step_s / result.step_s - 1,
        "predicted_run_s": predicted.run_s,
        "run_s": result.wall_s,
        "run_error": predicted.run_s / result.wall_s - 1,
        "predicted_usd": predicted.run_usd,
        "usd": usd,
        "usd_error": predicted.run_usd / usd - 1,
    }


def summarise(rows: list[Row]) -> list[Row]:
    """The mean and the worst error of each kind."""
    total: Row = {"cores": os.cpu_count()}
    for kind in ("step", "run", "usd"):
        errors = [abs(float(row[f"{kind}_error"] or 0.0)) for row in rows]
        total |= {f"mean_{kind}_error": statistics.mean(errors), f"worst_{kind}_error": max(errors)}
    return [total]


def plain_step_s() -> float:
    """Median full step of a hand-written loop, in a process that is held to one thread as members are."""
    command = [sys.executable, "-c", "from benchmarks import layouts; print(layouts.plain_loop())"]
    ended = subprocess.run(command, env=member_environment(1), check=True, capture_output=True, text=True)
    return float(ended.stdout.split()[-1])


def plain_loop() -> float:
    torch.set_num_threads(1)
    job = load_job(JOB_FILE)
    model, data = job.model(), job.data()
    optimizer = job.optimizer(list(model.named_parameters()))
    loader = torch.utils.data.DataLoader(data, batch_size=job.batch_size, shuffle=True, drop_last=True)
    times = []
    for _ in range(3):
        for inputs, target in loader:
            begin_s = time.perf_counter()
            optimizer.zero_grad()
            assert job.loss is not None
            job.loss(model(inputs), target).backward()
            optimizer.step()
            times.append(time.perf_counter() - begin_s)
    return statistics.median(times[1:])


if __name__ == "__main__":
    run_benchmark("step, run time and cost by layout", measure, lambda quick: len(layouts(quick)), summarise)
