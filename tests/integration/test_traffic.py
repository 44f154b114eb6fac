"""What a step is predicted to move and to ask of the store, against what the members of a rehearsal count."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from lab.plans import bare_plan
from lab.rehearsals import rehearse_stages
from lab.servers import delayed, rclone_s3
from tests.integration.counted_members import CountingPlatform, counted_steps
from zooid.core.plans.plan import Plan, TransportName
from zooid.core.plans.stage import Bucket, StageTimes, Tie
from zooid.predictor.costs.traffic import SeatTraffic, Traffic, step_traffic
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import even_shares, split_grains
from zooid.store import open_store

RTT_S = 0.03


def stage(out_bytes: float, *bucket_bytes: int) -> StageTimes:
    buckets = tuple(Bucket(num_bytes=size, at_share=0.5) for size in bucket_bytes)
    return StageTimes(forward_s=0.01, backward_s=0.02, out_bytes=out_bytes, buckets=buckets, reduce_s=0.0, update_s=0.0)


STAGES = (stage(10_001.0, 300_000, 70_004), stage(0.0, 5_000))
"""Buckets for which members choose one and the other algorithm; a message whose size is odd."""
TIES = (Tie(stages=(0, 1), num_bytes=6_000),)


def plan_of(num_replicas: int, num_stages: int, num_grains: int, transport: TransportName) -> Plan:
    return bare_plan(
        job="counted",
        spans=[(number, number + 1) for number in range(num_stages)],
        batch_size=num_grains,
        grain_size=1,
        num_replicas=num_replicas,
        transport=transport,
    )


def predicted(plan: Plan, stages: Sequence[StageTimes], ties: Sequence[Tie]) -> Traffic:
    shape = StepShape(
        plan.schedule,
        len(stages),
        plan.ahead,
        tuple(len(each.buckets) for each in stages),
        tuple(tie.stages for tie in ties),
    )
    schedule = shape.step(split_grains(plan.batch_size, even_shares(plan.batch_size, plan.num_replicas)))
    return step_traffic(
        schedule,
        stages,
        all_reduce=plan.all_reduce,
        is_direct=plan.is_direct,
        ties=ties,
        reproducible=plan.reproducible,
    )


def counted(
    plan: Plan, stages: Sequence[StageTimes], ties: Sequence[Tie], url: str, num_steps: int = 3
) -> tuple[dict[tuple[int, int], SeatTraffic], float]:
    """What every member counted in its last step, of which those before it must have been no different, and how long a
    step took. Looks are those of a step on the average, without the first half of them, in which members learn."""
    store = open_store(url)
    rehearsal = rehearse_stages(plan, [stages], ties, num_steps, store, CountingPlatform())
    found: dict[tuple[int, int], SeatTraffic] = {}
    for replica in range(plan.num_replicas):
        for number in range(len(stages)):
            steps = counted_steps(store, f"r{replica}s{number}")
            assert len(steps) == num_steps + 1
            names = ("sent_bytes", "received_bytes", "num_puts", "num_gets")
            assert len({tuple(step[name] for name in names) for step in steps}) == 1
            last = steps[-1]
            found[replica, number] = SeatTraffic(
                int(last["sent_bytes"]),
                int(last["received_bytes"]),
                int(last["num_puts"]),
                int(last["num_gets"]),
                statistics.fmean(step["num_missed_gets"] for step in steps[num_steps // 2 :]),
            )
    return found, rehearsal.step_s


def exact(seat: SeatTraffic) -> tuple[int, int, int, int]:
    return seat.sent_bytes, seat.received_bytes, seat.num_puts, seat.num_gets


@pytest.mark.timeout(180)
def test_members_put_and_get_what_was_predicted(tmp_path: Path) -> None:
    """Two stages that share parameters, of three replicas with unequal grains, through a folder."""
    plan = plan_of(3, 2, 5, "store")
    expected = predicted(plan, STAGES, TIES)
    measured, _ = counted(plan, STAGES, TIES, tmp_path.as_uri())
    assert {seat: exact(each) for seat, each in measured.items()} == {
        seat: exact(each) for seat, each in expected.seats.items()
    }
    assert expected.total.sent_bytes < expected.total.received_bytes, "a message may have several readers"


@pytest.mark.timeout(180)
def test_connected_members_send_what_was_predicted_and_ask_nothing_of_the_store(tmp_path: Path) -> None:
    plan = plan_of(2, 2, 3, "tcp")
    expected = predicted(plan, STAGES, TIES)
    measured, _ = counted(plan, STAGES, TIES, tmp_path.as_uri())
    assert {seat: exact(each) for seat, each in measured.items()} == {
        seat: exact(each) for seat, each in expected.seats.items()
    }
    assert expected.total.num_puts == 0
    assert sum(expected.passed_bytes.values()) == expected.total.sent_bytes == expected.total.received_bytes


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", ["tcp", "store"])
def test_so_do_members_whose_sums_follow_a_tree(tmp_path: Path, transport: TransportName) -> None:
    """Three replicas of four, three and three grains, which are one node and twice two nodes of the tree."""
    plan = structs.replace(plan_of(3, 1, 10, transport), reproducible=True)
    expected = predicted(plan, STAGES[:1], ())
    measured, _ = counted(plan, STAGES[:1], (), tmp_path.as_uri())
    assert {seat: exact(each) for seat, each in measured.items()} == {
        seat: exact(each) for seat, each in expected.seats.items()
    }


@pytest.mark.timeout(240)
def test_members_look_at_a_store_far_away_no_more_often_than_predicted() -> None:
    """Bytes, puts and gets are as predicted. Looks that come too early depend on how evenly members run: between a
    quarter and half of what is predicted was seen here, and a bill must not be larger than what was predicted."""
    stages = (stage(200_000.0, 300_000), stage(0.0, 5_000))
    plan = plan_of(2, 2, 8, "store")
    with rclone_s3() as near, delayed(near, RTT_S) as far, mock.patch.dict(os.environ, far.environment):
        measured, step_s = counted(plan, stages, (), f"{near.bucket_url('rehearsals')}/counted", num_steps=8)
    expected = predicted(plan, stages, ())
    assert {seat: exact(each) for seat, each in measured.items()} == {
        seat: exact(each) for seat, each in expected.seats.items()
    }
    looks = sum(seat.num_early_gets for seat in measured.values())
    print(f"steps of {step_s:.2f} s: {looks:g} looks too early, predicted {expected.total.num_early_gets:g}")
    assert 0 < looks <= expected.total.num_early_gets
