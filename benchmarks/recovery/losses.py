"""One run of four members that loses one of them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import structs

from benchmarks.recovery.jobs import BATCH_SIZE, COMPUTE_S, GRAIN_SIZE, sample_s, write_job
from benchmarks.recovery.picture import Story
from benchmarks.recovery.timing import redone_grains, resumption
from lab.attempts import Attempt
from lab.footprints import last_applied, read_footprints
from lab.namespaces import Star, connect_members, cut, mend, star
from lab.nursery import Conditions, Nursery
from lab.prepared import PreparedJob
from lab.servers import delayed, moto_s3
from zooid.core.errors import ZooidError
from zooid.core.plans.plan import Plan, TransportName
from zooid.core.records import encode_record

NUM_STEPS = 9
LOSS_AFTER = 5
"""Number of steps after which the member is lost."""
LATENCY_S = 0.03
_LIMIT_S = 60.0
_POLL_S = 0.005
_CHECKPOINTS = {"every_steps": 2, "keep": 2}

Kind = Literal["kill", "stop", "partition"]
Place = Literal["folder", "far store", "namespaces"]
"""Where the run lies: in a folder, on an S3 server 30 ms away, or on one that members reach over links to be cut."""


@dataclass(frozen=True)
class Loss:
    """Who is lost, when and how."""

    num_replicas: int
    num_stages: int
    member: str
    kind: Kind = "kill"
    transport: TransportName = "tcp"
    place: Place = "folder"
    moment: float = 0.5
    """Part of the step under way that is over by then."""

    @property
    def is_insured(self) -> bool:
        """A pipeline without replicas has copies of its stages."""
        return self.num_replicas == 1

    @property
    def layout(self) -> str:
        return f"{self.num_replicas}x{self.num_stages}{' insured' if self.is_insured else ''}"


@dataclass(frozen=True)
class Recovery:
    """What became of the run."""

    loss: Loss
    step_s: float = 0.0
    recovery_s: float | None = None
    """From the loss to the next committed step, beyond a step's own time; None if the run did not go on."""
    detection_s: float | None = None
    """From the loss until members noticed it."""
    steps_lost: int = 0
    redone_share: float | None = None
    """Grains that were computed again, as a share of those of the pipeline that lost a member."""
    why_not: str = ""
    """Why the run did not go on."""
    story: Story | None = None
    """What happened, for a picture."""


class Laboratory:
    """Runs of the job in all places; a context that clears them away."""

    def __init__(self, home: Nursery, folder: Path) -> None:
        self._home = home
        self._folder = folder
        self._stack = ExitStack()
        self._jobs: dict[int, PreparedJob] = {}
        self._star: Star | None = None
        self._buckets: dict[Place, tuple[dict[str, str], str]] = {}
        self._num_runs = 0

    def __enter__(self) -> "Laboratory":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def lose(self, loss: Loss) -> Recovery:
        """Run the job, and take a member away from it."""
        self._num_runs += 1
        file = write_job(self._folder / f"run-{self._num_runs}" / "job.py", loss.num_replicas, NUM_STEPS)
        job = self._job(loss.num_replicas)
        url = self._url(loss.place, file.parent)
        names = [f"r{replica}s{stage}" for replica in range(loss.num_replicas) for stage in range(loss.num_stages)]
        lab = self._star if loss.place == "namespaces" else None
        namespaces = {} if lab is None else dict(zip(names, (each.name for each in lab.members), strict=True))
        attempt = Attempt(
            self._home,
            file.parent / "coordinator.log",
            Conditions(namespaces=namespaces),
            store=url,
            job_file=str(file),
            plan=encode_record(_plan(job, loss)).decode(),
            checkpoints=_CHECKPOINTS,
        )

        def disturb() -> None:
            pid = next(pid for pid, name in self._home.members().items() if name == loss.member)
            match loss.kind:
                case "kill":
                    os.kill(pid, signal.SIGKILL)
                case "stop":
                    os.kill(pid, signal.SIGSTOP)
                case "partition":
                    assert lab is not None
                    cut(lab, lab.members[names.index(loss.member)])

        try:
            return self._watch(loss, attempt, file.parent, job, disturb)
        finally:
            self._home.end_all()
            if lab is not None:
                mend(lab, lab.members[names.index(loss.member)])

    def _watch(
        self, loss: Loss, attempt: Attempt, folder: Path, job: PreparedJob, disturb: Callable[[], None]
    ) -> Recovery:
        deadline_s = time.monotonic() + _LIMIT_S
        while (applied := last_applied(folder))[0] < LOSS_AFTER:
            if attempt.status is not None or time.monotonic() > deadline_s:
                raise ZooidError(f"the run does not begin to train:\n{attempt.words()}")
            time.sleep(_POLL_S)
        time.sleep(max(0.0, applied[1] + loss.moment * COMPUTE_S - time.monotonic()))
        fault_s, fault_at_s = time.monotonic(), time.time()
        disturb()
        deadline_s = fault_s + _LIMIT_S
        while last_applied(folder)[0] < NUM_STEPS and attempt.status is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        footprints = read_footprints(folder)
        found = resumption(footprints, fault_s)
        if found is None:
            why = "hangs" if attempt.status is None else attempt.words().strip().rpartition("\n")[2]
            return Recovery(loss, why_not=f"the run {why}" if attempt.status is None else why)
        changes = list(_roster_changes(attempt))
        noticed = [each["at_s"] - each["wall_s"] for each in changes]
        story = changes and Story(
            footprints,
            job.batches,
            loss.member,
            fault_s,
            noticed_s=fault_s + noticed[0] - fault_at_s,
            begun_s=fault_s + changes[0]["at_s"] - fault_at_s,
            sample_s=sample_s(loss.num_replicas),
            step=LOSS_AFTER,
        )
        lost_grains = BATCH_SIZE // GRAIN_SIZE // loss.num_replicas
        redone = redone_grains(footprints, job.batches, LOSS_AFTER, GRAIN_SIZE)
        return Recovery(
            loss,
            step_s=found.step_s,
            recovery_s=found.recovery_s,
            detection_s=noticed[0] - fault_at_s if noticed else None,
            steps_lost=found.steps_lost,
            redone_share=redone / (lost_grains * loss.num_stages),
            story=story or None,
        )

    def _job(self, num_replicas: int) -> PreparedJob:
        if num_replicas not in self._jobs:
            file = write_job(self._folder / f"job-{num_replicas}" / "job.py", num_replicas, NUM_STEPS)
            self._jobs[num_replicas] = PreparedJob(file)
        return self._jobs[num_replicas]

    def _url(self, place: Place, folder: Path) -> str:
        """A new place for a run, which the environment of new processes leads to."""
        if place == "folder":
            return f"{folder.as_uri()}/run"
        if place not in self._buckets:
            if place == "far store":
                near = self._stack.enter_context(moto_s3())
                server = self._stack.enter_context(delayed(near, LATENCY_S))
            else:
                self._star = self._stack.enter_context(star(4))
                connect_members(self._star)
                server = self._stack.enter_context(moto_s3(self._star.store.address, self._star.store.prefix))
            self._buckets[place] = server.environment, server.bucket_url("recovery")
        environment, bucket = self._buckets[place]
        os.environ.update(environment)
        return f"{bucket}/{folder.name}"


def _plan(job: PreparedJob, loss: Loss) -> Plan:
    plan = job.plan(loss.num_replicas, loss.num_stages, loss.transport)
    return structs.replace(plan, insured=loss.is_insured)


def _roster_changes(attempt: Attempt) -> Iterator[dict[str, float]]:
    """Changes because of a lost member, not those with which a new one joins."""
    return (event for event in attempt.events() if event["event"] == "roster_changed" and event["ruling"] != "planned")
