"""Rehearsals without a job: members sleep, but they vote, survive lost members and are resumed as others do."""

import os
import signal
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from lab.plans import bare_plan
from lab.rehearsals import rehearse_stages
from tests.integration.recording import RecordingPlatform, still_running
from zooid.coordinator.measurements.rehearsed_run import Rehearsal, rehearse_asleep
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Plan, TransportName
from zooid.core.plans.stage import Bucket, StageTimes, Tie
from zooid.core.resources.spot_trace import SpotTrace, TraceMetadata
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, MemberExited, RosterChanged, StepCommitted
from zooid.core.runs.replay import SpotReplay
from zooid.platforms.local import LocalPlatform
from zooid.store import open_store

pytestmark = pytest.mark.timeout(120)

TIES = (Tie(stages=(0, 1), num_bytes=2000),)
NUM_STEPS = 6


def stage(out_bytes: float) -> StageTimes:
    """A stage that computes 30 ms for a grain, and reduces most of its gradients before the backward ends."""
    return StageTimes(
        forward_s=0.01,
        backward_s=0.02,
        out_bytes=out_bytes,
        buckets=(Bucket(num_bytes=40_000, at_share=0.5), Bucket(num_bytes=4_000, at_share=1.0)),
        reduce_s=0.0,
        update_s=0.001,
    )


def plan_of(num_replicas: int, num_stages: int, transport: TransportName, num_grains: int = 6) -> Plan:
    return bare_plan(
        job="rehearsal",
        spans=[(number, number + 1) for number in range(num_stages)],
        batch_size=num_grains,
        grain_size=1,
        num_replicas=num_replicas,
        transport=transport,
    )


def rehearse(
    plan: Plan, folder: Path, killed: dict[int, str] | None = None, num_steps: int = NUM_STEPS
) -> tuple[Rehearsal, list[Event]]:
    """Rehearse a plan while members are killed, given by the step after which that happens."""
    platform, seen, left = RecordingPlatform(), list[Event](), dict(killed or {})

    def watch(event: Event) -> None:
        seen.append(event)
        if isinstance(event, StepCommitted) and event.step in left:
            os.kill(platform.pids[left.pop(event.step)], signal.SIGKILL)

    num_stages = len(plan.stages)
    stages = [stage(5000.0 if number < num_stages - 1 else 0.0) for number in range(num_stages)]
    ties = TIES if num_stages > 1 else ()
    rehearsed = rehearse_stages(plan, [stages], ties, num_steps, open_store(folder.as_uri()), platform, watch)
    assert not left, "every member was killed"
    assert still_running(list(platform.pids.values())) == []
    return rehearsed, seen


def without_planned(events: Sequence[Event]) -> list[RosterChanged]:
    """Changes that lost members have forced."""
    return [event for event in events if isinstance(event, RosterChanged) and event.ruling != "planned"]


@pytest.mark.parametrize(
    ("num_replicas", "num_stages", "transport", "is_reproducible", "victim"),
    [(3, 1, "tcp", False, "r0s0"), (2, 2, "tcp", True, "r1s0"), (2, 2, "store", False, "r0s1")],
)
def test_the_others_go_on_without_a_lost_member(
    num_replicas: int, num_stages: int, transport: TransportName, is_reproducible: bool, victim: str, tmp_path: Path
) -> None:
    plan = structs.replace(plan_of(num_replicas, num_stages, transport), reproducible=is_reproducible)
    rehearsed, seen = rehearse(plan, tmp_path, {2: victim})
    assert [event.member for event in seen if isinstance(event, MemberExited)] == [victim]
    [change] = without_planned(seen)
    assert victim not in change.members
    assert [event.step for event in seen if isinstance(event, StepCommitted)] == [*range(NUM_STEPS + 1)]
    assert len(rehearsed.steps_s) == NUM_STEPS
    grains_left = plan.batch_size / (num_replicas - 1)
    assert rehearsed.steps_s[3] > 0.95 * 0.03 * grains_left, "the members that are left compute more grains"


def test_a_copy_takes_the_seat_of_a_lost_member(tmp_path: Path) -> None:
    plan = structs.replace(plan_of(1, 2, "tcp", num_grains=2), insured=True)
    _, seen = rehearse(plan, tmp_path, {2: "r0s1"})
    [change] = without_planned(seen)
    assert set(change.members) == {"r0s0", "c0s0", "c0s1"}
    assert change.ruling != "rolled_back"


@pytest.mark.parametrize(
    ("num_stages", "transport", "is_reproducible"), [(1, "tcp", False), (2, "tcp", True), (2, "store", False)]
)
def test_another_member_joins_in_the_place_of_a_lost_one(
    num_stages: int, transport: TransportName, is_reproducible: bool, tmp_path: Path
) -> None:
    """It receives zeros of the planned sizes as a guest, and then computes its share at the planned pace."""
    plan = structs.replace(plan_of(2, num_stages, transport, num_grains=4), reproducible=is_reproducible)
    rehearsed, seen = rehearse(plan, tmp_path, {2: "r1s0"}, num_steps=60)
    assert [event.step for event in seen if isinstance(event, StepCommitted)] == [*range(61)]
    lost, guests, joined = [event for event in seen if isinstance(event, RosterChanged)]
    assert lost.ruling != "planned"
    assert "r1s0-1" in guests.members
    assert guests.ruling == joined.ruling == "planned"
    assert len(joined.members) == 2 * num_stages
    alone_s, together_s = rehearsed.steps_s[guests.step - 2], statistics.median(rehearsed.steps_s[joined.step :])
    assert together_s < 0.8 * alone_s, "two replicas share the grains again"


def test_a_member_joins_when_its_instance_is_up_again(tmp_path: Path) -> None:
    """One of three members is killed; while only two instances are up, nobody takes its seat."""
    trace = SpotTrace(metadata=TraceMetadata(gap_seconds=60.0), data=(3, 2, 2, 3))
    pace = RehearsalPace(rows=((stage(0.0),),), num_steps=90)
    seen = list[Event]()
    rehearsed = rehearse_asleep(
        plan_of(3, 1, "tcp"),
        pace,
        open_store(tmp_path.as_uri()),
        LocalPlatform(),
        spot=SpotReplay(trace=trace, speed=60.0, seed=5),
        on_event=seen.append,
    )
    report = rehearsed.report
    assert report is not None
    assert (report.num_lost, report.num_recoveries, report.num_joined, report.num_resumes) == (1, 1, 1, 0)
    first = next(event for event in seen if isinstance(event, StepCommitted))
    joined = [event for event in seen if isinstance(event, RosterChanged)][-1]
    assert joined.ruling == "planned"
    assert len(joined.members) == 3
    assert joined.at_s - first.at_s > 3.0, "the third instance comes back after three samples of a second"


def test_a_spot_trace_is_replayed(tmp_path: Path) -> None:
    """One of three members is killed, then the others; the run is resumed when three instances are up again."""
    trace = SpotTrace(metadata=TraceMetadata(gap_seconds=60.0), data=(2, 3, 2, 0, 3))
    pace = RehearsalPace(rows=((stage(0.0),),), num_steps=40)
    seen = list[Event]()
    rehearsed = rehearse_asleep(
        plan_of(3, 1, "tcp"),
        pace,
        open_store(tmp_path.as_uri()),
        LocalPlatform(),
        checkpoints=CheckpointRule(every_steps=2),
        spot=SpotReplay(trace=trace, speed=60.0, seed=5),
        on_event=seen.append,
    )
    report = rehearsed.report
    assert report is not None
    assert (report.num_steps, report.num_lost, report.num_recoveries, report.num_resumes) == (40, 3, 1, 1)
    steps = [event.step for event in seen if isinstance(event, StepCommitted)]
    assert report.num_redone == len(steps) - 40
    assert sorted(set(steps)) == [*range(40)]


def test_a_stage_without_survivors_sends_all_back_to_a_checkpoint(tmp_path: Path) -> None:
    """Both members of stage 1 are killed, so that one of the others takes it over, from the beginning."""
    _, seen = rehearse(plan_of(2, 2, "tcp", num_grains=2), tmp_path, {2: "r0s1", 3: "r1s1"})
    changes = without_planned(seen)
    assert [change.ruling for change in changes][-1] == "rolled_back"
    assert changes[-1].step == 0
    steps = [event.step for event in seen if isinstance(event, StepCommitted)]
    assert steps[-(NUM_STEPS + 1) :] == [*range(NUM_STEPS + 1)]
