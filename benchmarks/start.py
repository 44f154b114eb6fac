"""What it costs a member to start: processor time from its launch until it is ready for its first step.

A member of a GPT-2-like job starts three ways: `traced` builds and traces the model itself, `cold` rebuilds its stage
from the run's trace, and `warm` does so in a process that was forked from one that has imported torch. What the job's
own imports take, beside what the member has imported by then, is measured apart and left out. Further rows say what is
inside: importing torch, which no cold member can do without, and the job's imports.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import structs

from benchmarks.harness import Row, run_benchmark
from lab.runs import run_by_hand
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.relay import Relay
from zooid.core.environment import member_environment
from zooid.core.runs.events import Event, MemberStarted
from zooid.core.runs.spec import WorkerSpec
from zooid.platforms.local import LocalPlatform
from zooid.store import ObjectStore
from zooid.worker.__main__ import PRELOADS

JOB_FILE = Path(__file__).parent / "jobs" / "gpt2.py"
NUM_STARTS = 3
LIMIT_S = 120.0
_JOB_IMPORTS = """
import importlib, sys, time
from zooid.core.jobs.job import load_job
from zooid.worker.member_imports import lasting_imports
job_file, *before = sys.argv[1:]
with lasting_imports():
    for module in before:
        importlib.import_module(module)
begin_s = time.process_time()
with lasting_imports():
    load_job(job_file)
print(time.process_time() - begin_s)
"""
_TORCH = "import time; begin_s = time.process_time(); import torch; print(time.process_time() - begin_s)"


def measure(quick: bool) -> Iterator[Row]:
    """A row for every way to start; the median of several starts, taken in turn."""
    repeats = 1 if quick else NUM_STARTS
    yield {"start": "torch_import", "cpu_s": statistics.median(_printed(_TORCH) for _ in range(repeats))}
    job_cpu_s: dict[str, float] = {}
    for way, before in (("cold", ["zooid.worker.member.train_task"]), ("warm", PRELOADS)):
        taken_s = [_printed(_JOB_IMPORTS, str(JOB_FILE), *before) for _ in range(repeats)]
        job_cpu_s[way] = statistics.median(taken_s)
        yield {"start": f"job_imports_{way}", "cpu_s": job_cpu_s[way]}
    with run_by_hand(JOB_FILE, 1) as (store, [spec]):
        ways = _ways()
        _cpu_s_until_ready(store, spec, ways["warm"]())  # the process that members are forked from imports meanwhile
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, platform in ways.items():
                own = structs.replace(spec, trace="") if way == "traced" else spec
                job_s = job_cpu_s["warm" if way == "warm" else "cold"]
                taken[way].append(_cpu_s_until_ready(store, own, platform()) - job_s)
        for way, times in taken.items():
            yield {"start": way, "cpu_s": statistics.median(times), "most_cpu_s": max(times)}


def _ways() -> dict[str, Callable[[], LocalPlatform]]:
    """The platform that starts a member, for each way to start one."""
    forking = LocalPlatform()
    new = partial(LocalPlatform, forks=False)
    return {"traced": new, "cold": new, "warm": lambda: forking}


def _cpu_s_until_ready(store: ObjectStore, spec: WorkerSpec, platform: LocalPlatform) -> float:
    """Start a member, and end it when it is ready."""
    ready: list[MemberStarted] = []
    began_s = time.time()

    def take(event: Event) -> None:
        if isinstance(event, MemberStarted) and event.at_s > began_s:
            ready.append(event)

    relay = Relay(store, take)
    limit_s = time.monotonic() + LIMIT_S
    with Crew(platform, store, checks_input=False) as crew:
        crew.start("worker", [spec], [resolve_offer("local")])
        while not ready:
            assert time.monotonic() < limit_s, "the member was not ready in time"
            crew.is_done()
            relay.poll()
            time.sleep(0.02)
    return ready[0].cpu_s


def _printed(code: str, *arguments: str) -> float:
    """The number that a fresh interpreter prints."""
    environment = {**os.environ, **member_environment(1)}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return float(ran.stdout.split()[-1])


def summarise(rows: list[Row]) -> list[Row]:
    """The figures of the three ways in one row."""
    ways = [row for row in rows if row["start"] in ("traced", "cold", "warm")]
    return [{f"{row['start']}_cpu_s": row["cpu_s"] for row in ways}]


if __name__ == "__main__":
    run_benchmark("CPU seconds from launch to ready", measure, lambda quick: 6, summarise=summarise)
