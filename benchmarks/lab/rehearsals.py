"""Rehearsed pipelines between namespaces with real links: members by hand, without a model or a profile."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from benchmarks.lab.namespaces import Star, connect_members, shape, star
from benchmarks.lab.servers import rclone_s3
from zooid.catalog import local_offer
from zooid.coordinator.rehearsing import Rehearsal, rehearse_specs
from zooid.coordinator.running import roster_for
from zooid.core import keys
from zooid.core.plan import CostTerm, Plan, Prediction, ScheduleName, StagePlan, TransportName
from zooid.core.records import encode_record
from zooid.core.spec import RehearsalSpec
from zooid.core.stage import StageTimes
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform
from zooid.store import open_store

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Scene:
    """One pipeline to rehearse."""

    num_replicas: int
    stages: tuple[StageTimes, ...]
    num_grains: int
    """Of one replica."""
    schedule: ScheduleName
    ahead: int
    transport: TransportName

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

    def rehearse(self, scene: Scene, num_steps: int) -> Rehearsal:
        """Start the members of a scene, each in its namespace, and let them run."""
        plan = plan_of(scene)
        run = secrets.token_hex(4)
        # what connected members meet through is not measured: this machine's disk will do
        store = open_store(f"{self.url if scene.transport == 'store' else self.folder_url}/{run}")
        roster = roster_for(plan, run, 0, 0)
        store.put(keys.plan(0), encode_record(plan))
        store.put(keys.roster(0), encode_record(roster))
        specs = [
            RehearsalSpec(
                run=run,
                member=member.name,
                store=store.url,
                num_threads=1,
                stages=scene.stages,
                num_steps=num_steps + 1,
                timeout_s=TIMEOUT_S,
            )
            for member in roster.members
        ]
        homes = dict(zip([member.name for member in roster.members], self.lab.members, strict=False))

        def prefix(launch: Launch) -> list[str]:
            return homes[launch.member].prefix

        return rehearse_specs(specs, store, LocalPlatform(prefix), plan)


def plan_of(scene: Scene) -> Plan:
    """As much of a plan as a rehearsal reads."""
    offer = local_offer(2**40, "2026-01-01")
    prediction = Prediction(
        step_s=1.0, num_steps=1, startup_s=1.0, run_s=1.0, run_usd=0.0, cost_terms=(CostTerm(kind="members", usd=0.0),)
    )
    return Plan(
        job="rehearsal",
        model_fingerprint="",
        batch_size=scene.num_grains * scene.num_replicas,
        grain_size=1,
        num_replicas=scene.num_replicas,
        stages=tuple(
            StagePlan(first_layer=number, end_layer=number + 1, offer=offer.name, memory_bytes=0)
            for number in range(len(scene.stages))
        ),
        schedule=scene.schedule,
        ahead=scene.ahead,
        transport=scene.transport,
        all_reduce="auto",
        offers=(offer,),
        prediction=prediction,
    )


@contextmanager
def site(num_members: int, link_bytes_per_s: int) -> Iterator[Site]:
    """Namespaces whose links carry so much each way, connected with one another and with an S3 server."""
    with ExitStack() as stack:
        lab = stack.enter_context(star(num_members))
        server = stack.enter_context(rclone_s3(lab.store.address, lab.store.prefix))
        url = server.bucket_url("rehearsals")
        connect_members(lab)
        shape(lab, link_bytes_per_s)
        stack.enter_context(mock.patch.dict(os.environ, server.environment))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-rehearsals-")))
        yield Site(lab, url, folder.as_uri())
