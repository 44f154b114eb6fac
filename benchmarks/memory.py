"""Peak memory of members beside what the plan predicts: real members of real runs, a process for each stage.

Each job is profiled once; then plans of several layouts train it for a few steps, and every member tells the most that
its process has had. `ratio` is predicted / measured; below 1 the prediction was too low.
"""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, run_benchmark
from zooid import coordinator
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, MemberTrained
from zooid.planner import search, single

JOBS = ("bert", "gpt2", "resnet")
QUICK_JOBS = ("resnet",)
LAYOUTS = ((1, 1), (1, 2), (1, 3), (2, 1))
FOLDER = Path(__file__).parent / "jobs"


def measure(quick: bool) -> Iterator[Row]:
    for name in QUICK_JOBS if quick else JOBS:
        profile = coordinator.profile(FOLDER / f"{name}.py")
        for num_replicas, num_stages in LAYOUTS:
            limits = Limits(num_replicas=num_replicas, num_stages=num_stages, max_members=num_replicas * num_stages)
            plan = search(single(profile, resolve_offer("local")), limits, "fastest").pick
            yield from compare(name, profile, plan)


def compare(name: str, profile: Profile, plan: Plan) -> Iterator[Row]:
    peaks: dict[str, int] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, MemberTrained):
            peaks[event.member] = event.peak_bytes

    with tempfile.TemporaryDirectory() as folder:
        coordinator.train(
            FOLDER / f"{name}.py",
            store=f"file://{folder}/run",
            plan=plan,
            checkpoints=CheckpointRule(every_steps=1),  # so that one is written while training goes on
            on_event=on_event,
        )
    stages = [stage for _ in range(plan.num_replicas) for stage in plan.stages]
    for stage, (member, peak_bytes) in zip(stages, sorted(peaks.items()), strict=True):
        yield {
            "job": name,
            "layout": plan.layout,
            "schedule": plan.schedule,
            "grain_size": plan.grain_size,
            "member": member,
            "layers": f"{stage.first_layer}-{stage.end_layer}",
            "predicted_mb": stage.memory_bytes / 1e6,
            "measured_mb": peak_bytes / 1e6,
            "runtime_mb": profile.runtime_bytes / 1e6,
            "ratio": stage.memory_bytes / peak_bytes,
        }


def summary(rows: list[Row]) -> list[Row]:
    ratios = [float(str(row["ratio"])) for row in rows]
    errors = [abs(ratio - 1) for ratio in ratios]
    return [{"mean_error": statistics.mean(errors), "most_under": 1 - min(ratios), "most_over": max(ratios) - 1}]


if __name__ == "__main__":
    num_cases = sum(replicas * stages for replicas, stages in LAYOUTS)
    run_benchmark("memory of members", measure, lambda quick: num_cases * len(QUICK_JOBS if quick else JOBS), summary)
