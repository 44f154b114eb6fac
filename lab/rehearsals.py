"""Rehearsed pipelines between namespaces with real links: members by hand, without a model or a profile."""

import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from msgspec import structs

from lab.namespaces import Star, apart, connect_members, shape, star
from lab.plans import bare_plan
from lab.servers import delayed, rclone_s3
from zooid.coordinator.measurements.rehearsed_run import Rehearsal, rehearse_asleep
from zooid.coordinator.runs.relay import OnEvent, ignore
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Plan, ScheduleName, TransportName
from zooid.core.plans.stage import StageTimes, Tie
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import even_shares, split_grains
from zooid.store import ObjectStore, open_store


@dataclass(frozen=True)
class Scene:
    """One pipeline to rehearse."""

    num_replicas: int
    stages: tuple[StageTimes, ...]
    num_grains: int
    """Of one replica, on the average."""
    schedule: ScheduleName
    ahead: int
    transport: TransportName
    speeds: tuple[float, ...] = ()
    """Of each replica: what its computing takes, as a part of what `stages` say; 1 where nothing is given."""
    shares: tuple[int, ...] = ()
    """Whole grains of each replica; evenly where nothing is given."""

    @property
    def rows(self) -> tuple[tuple[StageTimes, ...], ...]:
        """The stages of every replica."""
        return tuple(
            tuple(
                structs.replace(stage, forward_s=factor * stage.forward_s, backward_s=factor * stage.backward_s)
                for stage in self.stages
            )
            for factor in self.speeds or (1.0,) * self.num_replicas
        )

    def schedule_of_step(self) -> StepSchedule:
        buckets = tuple(len(stage.buckets) for stage in self.stages)
        shape = StepShape(self.schedule, len(self.stages), self.ahead, buckets)
        num_grains = self.num_grains * self.num_replicas
        return shape.step(split_grains(num_grains, self.shares or even_shares(num_grains, self.num_replicas)))

    @property
    def layout(self) -> str:
        return f"{self.num_replicas}x{len(self.stages)}"


@dataclass(frozen=True)
class Site:
    """Where members stand: a namespace for each, and a store that all reach."""

    lab: Star
    url: str
    """Of a bucket that members reach over their links."""
    folder_url: str
    """Of a folder on this machine's disk."""

    def rehearse(self, scene: Scene, num_steps: int, on_event: OnEvent = ignore) -> Rehearsal:
        """Start the members of a scene, each in its namespace, and let them run."""
        store = open_store(f"{self.folder_of(scene.transport)}/{secrets.token_hex(4)}")
        return rehearse_stages(plan_of(scene), scene.rows, (), num_steps, store, self.platform(), on_event)

    def folder_of(self, transport: TransportName) -> str:
        """What connected members meet through is not measured: this machine's disk will do."""
        return self.url if transport == "store" else self.folder_url

    def platform(self) -> LocalPlatform:
        """Starts the first member in the first namespace, and so on."""
        homes = iter(self.lab.members)
        return LocalPlatform(lambda launch: next(homes).prefix)


def rehearse_stages(
    plan: Plan,
    stages: Sequence[Sequence[StageTimes]],
    ties: Sequence[Tie],
    num_steps: int,
    store: ObjectStore,
    platform: Platform,
    on_event: OnEvent = ignore,
) -> Rehearsal:
    """Rehearse so many steps after one that warms up, given the stages of each replica, or one row for all."""
    pace = RehearsalPace(rows=tuple(map(tuple, stages)), ties=tuple(ties), num_steps=num_steps + 1)
    return rehearse_asleep(plan, pace, store, platform, on_event=on_event)


def plan_of(scene: Scene) -> Plan:
    """As much of a plan as a rehearsal reads."""
    return bare_plan(
        job="rehearsal",
        spans=[(number, number + 1) for number in range(len(scene.stages))],
        batch_size=scene.num_grains * scene.num_replicas,
        grain_size=1,
        num_replicas=scene.num_replicas,
        schedule=scene.schedule,
        ahead=scene.ahead,
        transport=scene.transport,
        shares=scene.shares,
    )


@contextmanager
def site(num_members: int, link_bytes_per_s: int | Sequence[int], round_trip_s: float = 0.0) -> Iterator[Site]:
    """Namespaces whose links carry so much each way, connected with one another and with an S3 server: each so far
    away."""
    with ExitStack() as stack:
        lab = stack.enter_context(star(num_members))
        server = stack.enter_context(rclone_s3(lab.store.address, lab.store.prefix))
        url = server.bucket_url("rehearsals")
        if round_trip_s:
            server = stack.enter_context(delayed(server, round_trip_s, lab.store.address, lab.store.prefix))
            stack.enter_context(apart(lab, round_trip_s))
        connect_members(lab)
        shape(lab, link_bytes_per_s)
        stack.enter_context(mock.patch.dict(os.environ, server.environment))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-rehearsals-")))
        yield Site(lab, url, folder.as_uri())
