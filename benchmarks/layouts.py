"""A step of the digits example on several layouts: predicted before members start, measured, and the plain loop beside.

The plain loop is ordinary PyTorch in one process with one thread, on the same data; members have one thread each and
share this machine's cores, so that what a layout gains is bounded by their number.
"""

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
from zooid.core.environment import member_environment
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Limits
from zooid.core.plans.profile import Profile

JOB_FILE = Path(__file__).parent / "jobs" / "digits_short.py"
LAYOUTS = ((1, 1), (2, 1), (1, 2), (2, 2))
QUICK_LAYOUTS = ((1, 2),)


def layouts(quick: bool) -> tuple[tuple[int, int], ...]:
    return QUICK_LAYOUTS if quick else LAYOUTS


def measure(quick: bool) -> Iterator[Row]:
    plain_s = plain_step_s()
    profile = zooid.profile(JOB_FILE)
    errors = []
    for layout in layouts(quick):
        row = measure_layout(profile, *layout)
        errors.append(abs(float(row["error"] or 0.0)))
        measured_s = float(row["measured_step_s"] or 0.0)
        yield {**row, "plain_step_s": plain_s, "speed_vs_plain": plain_s / measured_s}
    yield {"mean_abs_error": statistics.mean(errors), "worst_abs_error": max(errors), "cores": os.cpu_count()}


def measure_layout(profile: Profile, num_replicas: int, num_stages: int) -> Row:
    """Plan a layout from the profile, then train it."""
    limits = Limits(num_replicas=num_replicas, num_stages=num_stages)
    plan = zooid.plan(JOB_FILE, measured=profile, limits=limits)
    with tempfile.TemporaryDirectory() as folder:
        result = zooid.train(JOB_FILE, store=f"file://{folder}/run", plan=plan)
    return {
        "layout": plan.layout,
        "grain": plan.grain_size,
        "predicted_step_s": plan.prediction.step_s,
        "measured_step_s": result.step_s,
        "error": plan.prediction.step_s / result.step_s - 1,
    }


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
    run_benchmark("step time by layout", measure, lambda quick: len(layouts(quick)) + 1)
