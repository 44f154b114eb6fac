"""Shares that follow measured speed: one of two members is slowed to half its speed by a CPU quota in mid-run.

Both members compute, with one thread each. First, every split of a step's grains runs for a few steps with the quota,
and the fastest of them is the best split. These runs end before shares could change. Then a run begins with equal
shares and without a quota. The quota comes, shares follow, the quota goes, and shares follow again.

`steps` counts steps from the moment of the change to the first one that takes at most 1.1 times as long as with the
best split, in the median of itself and the next two. The step in which the change comes counts. `ratio` is the median
time of all steps from then on, over the best split's time.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

import zooid
from benchmarks.harness import Row, run_benchmark
from lab.load import ForeignLoad
from lab.quotas import PERIOD_US, CpuQuota, why_no_quotas
from lab.runs import plan_by_hand
from lab.sessions import session_of
from zooid.core.plans.plan import Limits, Plan
from zooid.core.runs.events import Event, RosterChanged, StepCommitted
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform
from zooid.store import open_store
from zooid.store.rosters import read_roster

NUM_GRAINS = 12
EVEN = (NUM_GRAINS // 2, NUM_GRAINS // 2)
SLOWED = "r1s0"
QUOTA = 0.5
"""Cores of the slowed member."""
NEAR = 1.1
NUM_SPLIT_STEPS = 5
"""Steps of a run with fixed shares. Members need more to agree on other shares; the first one warms up."""
CALM_STEPS = 8
"""Steps before the quota."""
NUM_STEPS_WITH = 18
"""Steps with the quota, and as many without it afterwards."""

_JOB = """import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid

torch.set_default_dtype(torch.float64)


def build_model():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(256, 8))


def build_data():
    chance = torch.Generator().manual_seed(1)
    rows = torch.rand({batch_size}, {rows}, 256, generator=chance)
    return TensorDataset(rows, torch.rand({batch_size}, {rows}, 8, generator=chance))


job = zooid.Job(
    model=build_model,
    loss=nn.functional.mse_loss,
    data=build_data,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.01, momentum=0.9),
    batch_size={batch_size},
    grain_size={grain_size},
    epochs={num_steps},
    data_workers={data_workers},
)
"""
GRAIN_SIZE = 16
ROWS, QUICK_ROWS = 48, 16
"""Rows of each sample, which decide how long a step takes."""


@dataclass
class Watched:
    """A run with two members, one of which may be slowed."""

    folder: Path
    rows: int
    num_steps: int
    shares: tuple[int, int] = EVEN
    changes: tuple[tuple[int, float | None], ...] = ()
    """Quotas in cores, None to lift it, each with the step after which it comes."""
    quota_at_start: float | None = None
    period_us: int = PERIOD_US
    data_workers: int = 0
    seen: list[StepCommitted | RosterChanged] = field(default_factory=list)
    changed_at_s: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        return (self.folder / "run").as_uri()

    def train(self, plan: Plan | None = None) -> "Watched":
        """Train with equal shares, or with other shares by a plan of the same job."""
        job_file = write_job(self.folder, self.rows, self.num_steps, self.data_workers)
        if plan is not None:
            how: dict[str, Any] = {"plan": structs.replace(plan, shares=self.shares)}
        else:
            how = {"limits": Limits(num_replicas=2, num_stages=1, transport="tcp"), "profile": False}
        quota = CpuQuota(self.period_us)
        platform = _Platform(quota)
        if self.quota_at_start is not None:
            quota.limit(self.quota_at_start)
        left = list(self.changes)

        def watch(event: Event) -> None:
            if isinstance(event, StepCommitted | RosterChanged):
                self.seen.append(event)
            if isinstance(event, StepCommitted) and left and event.step + 1 >= left[0][0]:
                _, num_cores = left.pop(0)
                quota.lift() if num_cores is None else quota.limit(num_cores)
                self.changed_at_s.append(time.time())

        try:
            zooid.train(job_file, store=self.url, on_event=watch, platform=platform, **how)
        finally:
            quota.close()
        return self

    def steps_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Times between commits, of the steps that were committed between these moments, without the first step."""
        commits = sorted((event.step, event.at_s) for event in self.seen if isinstance(event, StepCommitted))
        return [end - begin for (_, begin), (_, end) in pairwise(commits) if since_s < end <= until_s]

    def splits(self) -> list[tuple[int, ...]]:
        """The shares of all rosters, in order."""
        store = open_store(self.url)
        changes = [event.change for event in self.seen if isinstance(event, RosterChanged)]
        return [read_roster(store, 0, change).shares for change in (0, *changes)]

    def split_after(self, since_s: float, num_steps: int) -> tuple[int, ...]:
        """The shares of a step, so many steps after a moment; the step in which it comes is the first."""
        commits = sorted((event.step, event.at_s) for event in self.seen if isinstance(event, StepCommitted))
        step = next(step for step, at_s in commits if at_s > since_s) + num_steps - 1
        changes = [event.step for event in self.seen if isinstance(event, RosterChanged)]
        return self.splits()[sum(first <= step for first in changes)]


class _Platform(LocalPlatform):
    """The local platform, whose slowed member is under a quota."""

    def __init__(self, quota: CpuQuota) -> None:
        super().__init__()
        self._quota = quota

    def create(self, launches: Sequence[Launch]) -> None:
        super().create(launches)
        for launch in launches:
            if launch.member == SLOWED:
                self._quota.take(session_of(launch))


def write_job(folder: Path, rows: int, num_steps: int, data_workers: int = 0) -> Path:
    file = folder / "job.py"
    sizes = {"batch_size": NUM_GRAINS * GRAIN_SIZE, "grain_size": GRAIN_SIZE, "rows": rows}
    file.write_text(_JOB.format(**sizes, num_steps=num_steps, data_workers=data_workers))
    return file


def plan_in(folder: Path, rows: int) -> Plan:
    """A plan of the job for two members."""
    job_file = write_job(folder, rows, NUM_SPLIT_STEPS)
    return structs.replace(plan_by_hand(job_file, 1, "1f1b", "tcp"), num_replicas=2)


def measure(quick: bool) -> Iterator[Row]:
    if reason := why_no_quotas():
        sys.exit(f"nothing is measured: {reason}")
    rows = QUICK_ROWS if quick else ROWS
    splits = [(first, NUM_GRAINS - first) for first in range(EVEN[0], NUM_GRAINS)]
    with tempfile.TemporaryDirectory(prefix="zooid-shares-") as folder:
        times: dict[tuple[int, int], float] = {}
        plan = plan_in(Path(folder), rows)
        for split in splits:
            found: list[float] = []
            for _ in range(1 if quick else 2):
                found += _run(folder, rows, NUM_SPLIT_STEPS, plan, shares=split, quota_at_start=QUOTA).steps_s()
            times[split] = statistics.median(found)
            yield {"shares": str(split), "quota": QUOTA, "step_s": times[split]}
        best = min(times, key=lambda split: times[split])
        num_steps = CALM_STEPS + 2 * NUM_STEPS_WITH
        calm = _run(folder, rows, num_steps)
        calm_s = statistics.median(calm.steps_s())
        yield {"shares": str(calm.splits()[-1]), "quota": None, "step_s": calm_s, "changes": len(calm.splits()) - 1}
        changes = ((CALM_STEPS, QUOTA), (CALM_STEPS + NUM_STEPS_WITH, None))
        with ForeignLoad() as foreign:
            run = _run(folder, rows, num_steps, changes=changes)
        slowed_s, lifted_s = run.changed_at_s
        difference = largest_difference(calm.url, run.url)
        slowed = run.steps_s(slowed_s, lifted_s)
        yield {**_row("slowed", slowed, times[best]), "best": str(best), **_splits(run, slowed_s, lifted_s)}
        freed = run.steps_s(lifted_s)
        freed_row = {**_row("freed", freed, calm_s), "best": str(EVEN), **_splits(run, lifted_s, float("inf"))}
        yield {**freed_row, "weights_differ_by": difference, "foreign_cores": foreign.num_cores}


def _run(
    folder: str,
    rows: int,
    num_steps: int,
    plan: Plan | None = None,
    *,
    shares: tuple[int, int] = EVEN,
    quota_at_start: float | None = None,
    changes: tuple[tuple[int, float | None], ...] = (),
) -> Watched:
    own = Path(tempfile.mkdtemp(dir=folder))
    run = Watched(own, rows, num_steps, shares, changes, quota_at_start).train(plan)
    print(f"{shares}: {[round(step_s, 3) for step_s in run.steps_s()]}", file=sys.stderr, flush=True)
    if not changes and len(run.splits()) > 1 and quota_at_start is not None:
        raise SystemExit(f"a run with the shares {shares} has changed them to {run.splits()[-1]}")
    return run


def _row(change: str, steps_s: list[float], best_s: float) -> Row:
    numbers = range(1, len(steps_s) + 1)
    first = next((number for number in numbers if statistics.median(steps_s[number - 1 :][:3]) <= NEAR * best_s), None)
    after = steps_s[first - 1 :] if first else steps_s
    return {
        "change": change,
        "steps": first,
        "ratio": statistics.median(after) / best_s,
        "step_s": statistics.median(after),
        "best_step_s": best_s,
    }


def _splits(run: Watched, since_s: float, until_s: float) -> Row:
    """The shares that followed in this time."""
    changes = [event.at_s for event in run.seen if isinstance(event, RosterChanged)]
    chosen = [str(split) for at_s, split in zip(changes, run.splits()[1:], strict=True) if since_s < at_s <= until_s]
    return {"shares": " ".join(chosen), "changes": len(chosen)}


def largest_difference(one: str, other: str) -> float:
    weights, others = zooid.load_checkpoint(one), zooid.load_checkpoint(other)
    return max(float(torch.max(torch.abs(weights[name] - others[name]))) for name in weights)


if __name__ == "__main__":
    run_benchmark("shares that follow measured speed", measure, lambda quick: NUM_GRAINS - EVEN[0] + 3)
