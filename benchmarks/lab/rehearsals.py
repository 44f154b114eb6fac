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
from benchmarks.lab.plans import bare_plan
from benchmarks.lab.servers import rclone_s3
from zooid.coordinator.rehearsing import Rehearsal, rehearse_stages
from zooid.core.plan import Plan, ScheduleName, TransportName
from zooid.core.stage import StageTimes
from zooid.platforms.local import LocalPlatform
from zooid.store import open_store


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
        # what connected members meet through is not measured: this machine's disk will do
        folder = self.url if scene.transport == "store" else self.folder_url
        store = open_store(f"{folder}/{secrets.token_hex(4)}")
        homes = iter(self.lab.members)
        return rehearse_stages(
            plan_of(scene), scene.stages, (), num_steps, store, LocalPlatform(lambda launch: next(homes).prefix)
        )


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
