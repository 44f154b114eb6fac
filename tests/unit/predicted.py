"""Plans, forecasts and runs of them by hand, with round numbers."""

from pathlib import Path
from typing import Any

from msgspec import structs

from tests.unit.profiles import layer, offer, profile, store_links
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.records import encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import RunFinished, RunStarted, StepCommitted
from zooid.core.runs.timeline import Timeline
from zooid.planner import search, single
from zooid.store import EventWriter, open_store

MB = 10**6


def a_profile(**changed: Any) -> Profile:
    """Four layers of 10 ms a sample, 1 MB of parameters each; steps of 16 samples, 1000 of them."""
    layers = [layer(0.01, out_bytes=1000.0, parameter_bytes=MB) for _ in range(4)]
    fields: dict[str, Any] = {"batch_size": 16, "num_samples": 16_000, "largest_grain": 16} | changed
    return profile(fields.pop("layers", layers), fields.pop("links", store_links()), **fields)


def rented(**changed: Any) -> Offer:
    """A dollar for an hour, billed by the second."""
    fields: dict[str, Any] = {"name": "aws.made.up", "region": "us-east-1", "memory_bytes": 10**10} | changed
    return offer(fields.pop("usd_per_hour", 1.0), **fields)


def owned(**changed: Any) -> Offer:
    return rented(name="own", kind="owned", market="owned", **changed)


def a_plan(made: Profile, on: Offer | None = None, replicas: int = 1, stages: int = 1, **limits: Any) -> Plan:
    wanted = Limits(num_replicas=replicas, num_stages=stages, max_members=64, **limits)
    return search(single(made, on or owned()), wanted, "fastest").pick


def pinned(made: Profile, grain_size: int) -> Profile:
    """With one grain size only, so that the planner has no choice."""
    layers = tuple(
        structs.replace(each, points=tuple(point for point in each.points if point.num_samples == grain_size))
        for each in made.layers
    )
    return structs.replace(made, layers=layers)


def write_run(
    folder: Path, plan: Plan, steps_s: list[float], timeline: Timeline | None, *, run_s: float = 100.0, usd: float = 2.0
) -> str:
    """A folder as a run of the plan leaves it; without a timeline, as one that was cut short does. Its URL."""
    store = open_store(folder.as_uri())
    store.put(keys.plan(0), encode_record(plan))
    with EventWriter(store, "coordinator") as writer:
        writer.write(
            RunStarted(
                at_s=1.0,
                run="a",
                store=store.url,
                layout=plan.layout,
                num_steps=len(steps_s),
                first_step=0,
                batch_size=plan.batch_size,
                predicted_step_s=1.0,
                predicted_run_s=1.0,
                predicted_usd=0.0,
                members=(),
                prices="",
            )
        )
        for step, step_s in enumerate(steps_s):
            writer.write(
                StepCommitted(at_s=2.0 + step, step=step, epoch=0, loss=1.0, num_samples=plan.batch_size, step_s=step_s)
            )
        if timeline is not None:
            writer.write(RunFinished(at_s=1e6, wall_s=run_s, step_s=1.0, usd=usd, checkpoint=""))
    if timeline is not None:
        for member in timeline.members:
            own = tuple(interval for interval in timeline.intervals if interval.member == member)
            store.put(keys.timeline(len(steps_s) - 1, member), encode_record(structs.replace(timeline, intervals=own)))
    return store.url
