"""Plans of rented members, rehearsed on one machine: bytes and rates are divided by the same number, so that everything
takes as long as it would there, and two cores are enough for it."""

import secrets
from dataclasses import dataclass, replace

from msgspec import structs

from lab.plans import bare_plan
from lab.rehearsals import Site, rehearse_stages
from zooid.coordinator.measurements.rehearsed_run import Rehearsal
from zooid.coordinator.runs.relay import OnEvent, ignore
from zooid.core.plans.plan import Plan
from zooid.core.plans.stage import Bucket, StageTimes
from zooid.predictor import Layout, Noise, World, lay_out, simulate_steps
from zooid.schedule.pipelines import StepSchedule
from zooid.store import open_store

_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Miniature:
    """A plan with small messages on slow links."""

    plan: Plan
    schedule: StepSchedule
    layout: Layout

    @classmethod
    def of(cls, given: Plan, world: World, factor: float) -> "Miniature":
        schedule, layout = lay_out(given, world)
        plan = bare_plan(
            job="rehearsal",
            spans=[(number, number + 1) for number in range(len(given.stages))],
            batch_size=sum(map(len, schedule.grains)),
            grain_size=1,
            num_replicas=given.num_replicas,
            schedule=given.schedule,
            ahead=given.ahead,
            transport=given.transport,
            all_reduce=given.all_reduce,
            shares=given.shares,
        )
        return cls(plan, schedule, smaller(layout, factor))

    @property
    def step_s(self) -> float:
        """Simulated."""
        return simulate_steps(self.schedule, self.layout, 1, Noise()).mean_s

    def rehearse(self, lab: Site, num_steps: int, on_event: OnEvent = ignore) -> Rehearsal:
        """Each member in a namespace of its own, with the links that the laboratory has."""
        store = open_store(f"{lab.folder_of(self.plan.transport)}/{secrets.token_hex(4)}")
        stages, ties = self.layout.stages, self.layout.ties
        return rehearse_stages(self.plan, stages, ties, num_steps, store, lab.platform(), on_event)


def smaller(layout: Layout, factor: float) -> Layout:
    """The same with messages, gradients and rates divided."""
    return replace(
        layout,
        stages=tuple(tuple(_smaller_stage(stage, factor) for stage in row) for row in layout.stages),
        ties=tuple(structs.replace(tie, num_bytes=_whole(tie.num_bytes / factor)) for tie in layout.ties),
        links={
            ends: replace(
                link,
                bytes_per_s=link.bytes_per_s / factor,
                stream_bytes_per_s=link.stream_bytes_per_s / factor,
                total_bytes_per_s=link.total_bytes_per_s / factor,
            )
            for ends, link in layout.links.items()
        },
    )


def _smaller_stage(stage: StageTimes, factor: float) -> StageTimes:
    buckets = tuple(
        Bucket(num_bytes=_whole(bucket.num_bytes / factor), at_share=bucket.at_share) for bucket in stage.buckets
    )
    return structs.replace(stage, out_bytes=float(int(stage.out_bytes / factor)), buckets=buckets)


def _whole(num_bytes: float) -> int:
    """Of numbers that can be reduced."""
    return max(1, round(num_bytes / _ELEMENT_BYTES)) * _ELEMENT_BYTES
