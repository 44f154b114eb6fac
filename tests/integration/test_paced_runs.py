"""Rehearsals of a job: members train the real model, and computing takes the time of a profile."""

import json
import os
import signal
import statistics
from pathlib import Path

import pytest
import torch
from msgspec import structs

import zooid
from tests.integration.forking import ForkingPlatform
from tests.integration.jobs import plan_by_hand, traced_job, write_job
from tests.integration.recording import RecordingPlatform
from tests.unit import profiles
from zooid.coordinator.measurements.rehearsed_run import Rehearsal
from zooid.core.errors import InputError
from zooid.core.plans.plan import Plan, TransportName
from zooid.core.plans.profile import GradientReady, Profile
from zooid.core.runs.events import Event, PaceMissed, RosterChanged, RunStarted, StepCommitted
from zooid.core.runs.timeline import Timeline
from zooid.store import open_store

pytestmark = pytest.mark.timeout(120)

EPOCHS = 3
SAMPLE_S = 5e-4
"""Time of a layer for one sample."""


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job") / "job.py", fields={"epochs": str(EPOCHS)})


def profile_of(job_file: Path, plan: Plan, sample_s: float = SAMPLE_S, epochs: int = EPOCHS) -> Profile:
    """Every layer takes the same time, and completes its gradients at its end, where a backward is half done."""
    _, layered = traced_job(job_file)
    layers = []
    for number in range(layered.num_layers):
        sizes = layered.trained_bytes(number, number + 1)
        gradients = tuple(GradientReady(name=name, num_bytes=size, at_share=0.5) for name, size in sizes.items())
        made = profiles.layer(sample_s, parameter_bytes=sum(sizes.values()), sizes=(1, 6, 40))
        layers.append(structs.replace(made, gradients=gradients))
    ways = [(a, b) for a in ("local", "store") for b in ("local", "store") if (a, b) != ("store", "store")]
    return profiles.profile(
        layers,
        tuple(profiles.link(1e9, 1e-4, from_site=source, to_site=target) for source, target in ways),
        model_fingerprint=plan.model_fingerprint,
        batch_size=plan.batch_size,
        num_samples=150,
        epochs=epochs,
        optimizer_s_per_byte=1e-7,
    )


def plan_of(job_file: Path, num_replicas: int, num_stages: int, transport: TransportName) -> Plan:
    """On members with one thread, as rehearsed ones have."""
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=num_stages, schedule="1f1b", transport=transport)
    return structs.replace(plan, offers=tuple(structs.replace(offer, vcpus=1.0) for offer in plan.offers))


@pytest.fixture(scope="module")
def free_url(job_file: Path, forking: ForkingPlatform) -> str:
    """A run at full speed whose bits depend on no layout and no lost member."""
    plan, url = structs.replace(plan_of(job_file, 1, 1, "tcp"), reproducible=True), (job_file.parent / "free").as_uri()
    zooid.train(job_file, store=url, plan=plan, platform=forking)
    return url


def assert_same_bits(url: str, other_url: str) -> None:
    one, other = zooid.load_checkpoint(url), zooid.load_checkpoint(other_url)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


class TestWeights:
    @pytest.mark.parametrize(("num_replicas", "num_stages", "transport"), [(2, 1, "tcp"), (1, 2, "store")])
    def test_they_are_those_of_a_run_at_full_speed_bit_for_bit(
        self,
        num_replicas: int,
        num_stages: int,
        transport: TransportName,
        job_file: Path,
        forking: ForkingPlatform,
        tmp_path: Path,
    ) -> None:
        plan = plan_of(job_file, num_replicas, num_stages, transport)
        url, paced_url = (tmp_path / "free").as_uri(), (tmp_path / "paced").as_uri()
        free = zooid.train(job_file, store=url, plan=plan, platform=forking)
        rehearsed = zooid.rehearse(plan, profile_of(job_file, plan), job=job_file, store=paced_url, platform=forking)
        assert rehearsed.run is not None
        assert rehearsed.run.losses == free.losses
        assert_same_bits(url, paced_url)
        num_members, num_layers = num_replicas * num_stages, plan.stages[-1].end_layer
        assert rehearsed.run.step_s >= plan.batch_size * num_layers * SAMPLE_S / num_members, "its members have slept"

    @pytest.mark.parametrize(("num_replicas", "num_stages", "transport"), [(2, 1, "store"), (1, 2, "tcp")])
    def test_so_they_are_if_sums_follow_a_tree(
        self,
        num_replicas: int,
        num_stages: int,
        transport: TransportName,
        job_file: Path,
        free_url: str,
        forking: ForkingPlatform,
        tmp_path: Path,
    ) -> None:
        plan, url = plan_of(job_file, num_replicas, num_stages, transport), tmp_path.as_uri()
        plan = structs.replace(plan, reproducible=True)
        zooid.rehearse(plan, profile_of(job_file, plan), job=job_file, store=url, platform=forking)
        assert_same_bits(free_url, url)

    def test_they_are_even_if_a_member_is_killed(self, job_file: Path, free_url: str, tmp_path: Path) -> None:
        plan = structs.replace(plan_of(job_file, 3, 1, "tcp"), reproducible=True)
        platform, seen = RecordingPlatform(), list[Event]()

        def watch(event: Event) -> None:
            seen.append(event)
            if isinstance(event, StepCommitted) and event.step == 3:
                os.kill(platform.pids["r1s0"], signal.SIGKILL)

        url = tmp_path.as_uri()
        zooid.rehearse(plan, profile_of(job_file, plan), job=job_file, store=url, platform=platform, on_event=watch)
        lost, *planned = [event for event in seen if isinstance(event, RosterChanged)]
        assert lost.members == ("r0s0", "r2s0")
        assert {event.ruling for event in planned} <= {"planned"}
        assert_same_bits(free_url, url)

    @pytest.mark.parametrize(("num_stages", "transport"), [(1, "tcp"), (2, "store")])
    def test_they_are_if_members_join_at_the_same_pace(
        self, num_stages: int, transport: TransportName, job_file: Path, free_url: str, tmp_path: Path
    ) -> None:
        """The guests keep the pace of those that train, as their steps show."""
        plan = structs.replace(plan_of(job_file, 1, num_stages, transport), reproducible=True)
        profile, seen, url = profile_of(job_file, plan), list[Event](), tmp_path.as_uri()

        def watch(event: Event) -> None:
            seen.append(event)
            if isinstance(event, StepCommitted) and event.step == 0:
                zooid.scale(url, 2, num_stages)

        zooid.rehearse(plan, profile, job=job_file, store=url, slower=6.0, on_event=watch)
        changes = [event for event in seen if isinstance(event, RosterChanged)]
        assert [len(event.members) for event in changes] == [2 * num_stages] * 2
        assert_same_bits(free_url, url)
        full = [event for event in seen if isinstance(event, StepCommitted) and event.num_samples == plan.batch_size]
        alone_s = min(event.step_s for event in full if event.step < changes[0].step)
        together_s = min(event.step_s for event in full if event.step >= changes[1].step)
        assert 0.4 * alone_s < together_s < 0.8 * alone_s


class TestTimes:
    """Alone on the machine."""

    def test_many_members_on_few_cores_take_their_planned_times(self, tmp_path: Path) -> None:
        """Eight members whose steps compute 0.4 s; a grain has one sample, so that each has five of them."""
        fields = {"epochs": "2", "grain_size": "1"}
        job_file = write_job(tmp_path / "job.py", fields=fields)
        plan = plan_of(job_file, 8, 1, "tcp")
        profile = profile_of(job_file, plan, sample_s=1e-3, epochs=2)
        planned_s = sum(layer.forward_s(1) + layer.backward_s(1) for layer in profile.layers)
        seen = list[Event]()
        slower = 0.08 / planned_s
        rehearsed = zooid.rehearse(
            plan, profile, job=job_file, store=f"{tmp_path.as_uri()}/run", slower=slower, on_event=seen.append
        )
        assert not [event for event in seen if isinstance(event, PaceMissed)]
        computed_s = computing_times(rehearsed.timeline)
        assert len(computed_s) == 8
        assert statistics.median(computed_s.values()) == pytest.approx(0.4, rel=0.02)
        assert list(computed_s.values()) == pytest.approx([0.4] * 8, rel=0.05)

    def test_a_member_that_cannot_keep_the_pace_says_so(
        self, job_file: Path, forking: ForkingPlatform, tmp_path: Path
    ) -> None:
        plan, seen = plan_of(job_file, 1, 1, "tcp"), list[Event]()
        zooid.rehearse(
            plan,
            profile_of(job_file, plan),
            job=job_file,
            store=tmp_path.as_uri(),
            slower=1e-3,
            on_event=seen.append,
            platform=forking,
        )
        [missed] = [event for event in seen if isinstance(event, PaceMissed)]
        assert missed.member == "r0s0"
        assert missed.computed_s > missed.planned_s


def computing_times(timeline: Timeline) -> dict[str, float]:
    """The time from the first forward to the last backward of each member."""
    spans: dict[str, list[float]] = {}
    for interval in timeline.intervals:
        if interval.lane == "compute" and not interval.action.endswith("COMMIT"):
            spans.setdefault(interval.member, []).extend((interval.start_s, interval.end_s))
    return {member: max(moments) - min(moments) for member, moments in spans.items()}


class TestSpotTraces:
    GAP_S = 1.0
    SLOWER = 4.0

    def replay(self, job_file: Path, plan: Plan, url: str, *data: int, seen: list[Event]) -> Rehearsal:
        trace = job_file.with_name("spot.json")
        trace.write_text(json.dumps({"metadata": {"gap_seconds": 60.0 * self.GAP_S}, "data": data}))
        return zooid.rehearse(
            plan,
            profile_of(job_file, plan),
            job=job_file,
            store=url,
            slower=self.SLOWER,
            checkpoints=zooid.CheckpointRule(every_steps=3),
            trace=trace,
            seed=1,
            on_event=seen.append,
        )

    def test_a_run_survives_what_it_can_and_is_resumed_after_the_rest(
        self, job_file: Path, free_url: str, tmp_path: Path
    ) -> None:
        """Three members, then two, then none, then three again. A step takes about a fifth of a second."""
        plan = structs.replace(plan_of(job_file, 3, 1, "tcp"), reproducible=True)
        url, seen = tmp_path.as_uri(), list[Event]()
        rehearsed = self.replay(job_file, plan, url, 0, 3, 2, 0, 3, seen=seen)
        report = rehearsed.report
        assert report is not None
        assert report.num_lost == 3
        assert (report.num_recoveries, report.num_resumes) == (1, 1)
        assert report.num_steps == plan.num_steps
        steps = [event.step for event in seen if isinstance(event, StepCommitted)]
        assert report.num_redone == len(steps) - len(set(steps))
        assert report.down_s > 0
        _, resumed = [event for event in seen if isinstance(event, RunStarted)]
        assert resumed.first_step >= 3
        assert resumed.predicted_step_s is not None
        full_s = [event.step_s for event in seen if isinstance(event, StepCommitted) and event.num_samples == 40]
        assert full_s[-1] > 0.95 * resumed.predicted_step_s, "resumed members are paced, too"
        assert_same_bits(free_url, url)

    def test_a_trace_that_never_has_enough_is_rejected(self, job_file: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="never has more than 2 instances up, but the plan has 3 members"):
            self.replay(job_file, plan_of(job_file, 3, 1, "tcp"), tmp_path.as_uri(), 0, 2, 1, seen=[])
        assert open_store(tmp_path.as_uri()).is_empty()

    def test_a_trace_that_ends_without_instances_ends_the_run_and_says_how_to_go_on(
        self, job_file: Path, tmp_path: Path
    ) -> None:
        plan = plan_of(job_file, 1, 2, "tcp")
        with pytest.raises(InputError, match=r"never has 2 instances again; `zooid resume .*` continues"):
            self.replay(job_file, plan, tmp_path.as_uri(), 2, 1, seen=[])
