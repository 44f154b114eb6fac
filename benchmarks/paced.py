"""Whether members that train a small job keep the times of a plan, however many share this machine's cores.

Each row is one plan, rehearsed twice: by members that train the job in the meantime, and by members that only sleep.
`computed_percent` is how much longer than planned the members computed, in the step that was recorded, and `worst` is
that of the slowest member. `step_percent` is how much longer a step took with the job than without it.
"""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zooid
from benchmarks.harness import Row, run_benchmark
from zooid.core.plans.plan import Limits, TransportName
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Links
from zooid.core.runs.events import Event, PaceMissed
from zooid.core.runs.timeline import Timeline

JOB_FILE = Path(__file__).parent / "jobs" / "small_digits.py"
COMPUTED_S = 0.8
"""Planned computing of the busiest member in a step."""
LAYOUTS: tuple[tuple[int, int, TransportName], ...] = (
    (2, 1, "tcp"),
    (1, 2, "tcp"),
    (2, 2, "store"),
    (4, 2, "tcp"),
    (8, 1, "tcp"),
    (16, 1, "tcp"),
)
QUICK = 3
MEASURED_STEPS = 5


def measure(quick: bool) -> Iterator[Row]:
    profile = zooid.profile(JOB_FILE)
    links = zooid.probe(ends=("peers",), seconds=0.3)
    for layout in LAYOUTS[: QUICK if quick else None]:
        yield compare(profile, links, *layout)


def compare(profile: Profile, links: Links, num_replicas: int, num_stages: int, transport: TransportName) -> Row:
    limits = Limits(
        num_replicas=num_replicas,
        num_stages=num_stages,
        transport=transport,
        max_members=num_replicas * num_stages,
    )
    plan = zooid.plan(JOB_FILE, measured=profile, limits=limits, links=links if transport == "tcp" else None)
    asleep = zooid.rehearse(plan, profile, steps=1)
    slower = COMPUTED_S / max(computed_s(asleep.timeline).values())
    asleep = zooid.rehearse(plan, profile, steps=MEASURED_STEPS, slower=slower)
    late: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, PaceMissed):
            late.append(event)

    with tempfile.TemporaryDirectory(prefix="zooid-paced-") as folder:
        store = Path(folder, "run").as_uri()
        paced = zooid.rehearse(plan, profile, job=JOB_FILE, store=store, slower=slower, on_event=watch)
    planned, computed = computed_s(asleep.timeline), computed_s(paced.timeline)
    excess = [100 * (computed[member] / planned[member] - 1) for member in planned]
    return {
        "layout": plan.layout,
        "transport": transport,
        "slower": slower,
        "asleep_step_s": asleep.step_s,
        "paced_step_s": paced.step_s,
        "step_percent": 100 * (paced.step_s / asleep.step_s - 1),
        "computed_percent": statistics.median(excess),
        "worst": max(excess, key=abs),
        "num_late": len(late),
    }


def computed_s(timeline: Timeline) -> dict[str, float]:
    """The time of all forwards and backwards of each member."""
    sums: dict[str, float] = {}
    for interval in timeline.intervals:
        if interval.lane == "compute" and not interval.action.endswith("COMMIT"):
            sums[interval.member] = sums.get(interval.member, 0.0) + interval.end_s - interval.start_s
    return sums


if __name__ == "__main__":
    run_benchmark("paced members", measure, lambda quick: QUICK if quick else len(LAYOUTS))
