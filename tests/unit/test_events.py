"""Events are the only thing pictures are made from: they come back as they were written, or the line is named."""

import math

import pytest

from zooid.core.errors import RecordError
from zooid.core.plans.plan import CostTerm
from zooid.core.resources.tariff import Tariff
from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Evaluated,
    Event,
    FleetChosen,
    LimitsEndangered,
    MemberExited,
    MemberPrinted,
    MembersAdopted,
    MemberStarted,
    MemberTrained,
    Metered,
    ModelTraced,
    OptimizerChanged,
    PaceMissed,
    PhaseStarted,
    PriceChanged,
    ProfileProgress,
    RosterChanged,
    RunFinished,
    RunningMember,
    RunStarted,
    ScalingExpected,
    ScalingWanted,
    StepCommitted,
    StoppedEarly,
    StoreUsed,
    decode_events,
    encode_events,
)

ALL: list[Event] = [
    PhaseStarted(at_s=1.0, phase="profiling"),
    ProfileProgress(at_s=2.0, done=1, total=4),
    RunStarted(
        at_s=3.0,
        run="run-7",
        store="s3://bucket/run-7",
        layout="2x2",
        num_steps=100,
        first_step=0,
        batch_size=64,
        predicted_step_s=0.5,
        predicted_run_s=50.0,
        predicted_usd=0.25,
        members=("m0", "m1", "m2", "m3"),
        prices="this machine, 2024-05-01",
        checkpoints="every 10m, as given",
    ),
    ModelTraced(at_s=3.4, digest="00ff", why_traced="it runs Python code"),
    OptimizerChanged(at_s=3.5, settings={"lr": ("0.001", "0.01")}, before={"lr": ("0.1",)}),
    MemberStarted(at_s=4.0, member="m0", num_layers=3, parameter_bytes=1200),
    MemberTrained(at_s=4.5, member="m0", peak_bytes=3_000_000),
    StepCommitted(at_s=5.0, step=0, epoch=0, loss=2.5, num_samples=64, step_s=0.4),
    Evaluated(at_s=5.5, epoch=0, step=1, loss=2.4, metrics={"accuracy": 0.5}, num_samples=64, wall_s=0.2),
    ScalingExpected(at_s=5.6, step=1, num_replicas=2),
    ScalingWanted(at_s=5.6, step=1, batch_size=128, num_replicas=2),
    BatchChanged(at_s=5.6, step=1, batch_size=128, rate_factor=0.5, num_steps=51),
    MemberPrinted(at_s=5.7, member="r0s0", text="hello"),
    StoppedEarly(at_s=5.8, step=1, reason="job.on_event wished so"),
    CheckpointSaved(at_s=6.0, step=1, url="s3://bucket/run-7/checkpoints/00000001", pause_s=0.5, next_in_s=60.0),
    MembersAdopted(at_s=6.4, members=("m1", "m2"), step=3),
    RosterChanged(at_s=6.5, change=1, members=("m1", "m2"), step=3, ruling="unfinished", wall_s=0.2),
    PaceMissed(at_s=6.8, member="m1", planned_s=0.1, computed_s=0.2),
    MemberExited(at_s=7.0, member="m0", exit_text="was killed by signal 9\nand said nothing"),
    StoreUsed(at_s=7.5, member="m0", num_puts=3, num_gets=4, num_lists=1, sent_bytes=10, received_bytes=20),
    Metered(
        at_s=8.0,
        usd=0.01,
        terms=(CostTerm(kind="compute", usd=0.01),),
        usd_per_s=0.001,
        running=(
            RunningMember(
                member="m1",
                offer="aws.lambda.1769",
                site="aws.us-east-1",
                tariff=Tariff(started_at_s=3.0, usd_per_hour=0.1, billing_grain_s=0.001, billing_minimum_s=0.0),
            ),
        ),
        settled=(CostTerm(kind="compute", usd=0.004),),
        trains_from_s=4.0,
    ),
    PriceChanged(at_s=8.2, offer="aws.lambda.1769", usd_per_hour=0.3, before_usd_per_hour=0.1),
    FleetChosen(
        at_s=8.3,
        plan="fleet-1",
        fleet="1 × p3 and 8 × g3",
        reason="r1s0 was lost",
        because="it ends for $2.00 instead of $3.00",
        end_at_s=100.0,
        usd=2.0,
    ),
    LimitsEndangered(at_s=8.4, reason="it will cost $3 of $2", would_hold="a budget of $3 would hold"),
    RunFinished(
        at_s=9.0,
        wall_s=6.0,
        step_s=0.5,
        usd=0.02,
        terms=(CostTerm(kind="compute", usd=0.02),),
        checkpoint="s3://bucket/run-7/checkpoints/00000100",
    ),
]


def test_every_event_comes_back_as_it_was_written() -> None:
    data = encode_events(ALL)
    assert decode_events(data, "events/m0") == ALL
    assert data.count(b"\n") == len(ALL), "one line for each event, whatever its texts hold"


def test_the_list_above_holds_every_kind_of_event() -> None:
    assert {type(event) for event in ALL} == set(Event.__args__)


def test_parts_written_one_after_another_read_as_one() -> None:
    data = encode_events(ALL[:3]) + encode_events([]) + encode_events(ALL[3:])
    assert decode_events(data, "events/m0") == ALL


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"event":"metered","at_s":1.0,"usd":', "truncated"),
        (b'{"event":"party","at_s":1.0}', "party"),
        (b'{"event":"metered","at_s":1.0,"usd":1.0,"eur":2.0}', "unknown field `eur`"),
        (b'{"event":"metered","at_s":1.0,"usd":"much"}', r"\$.usd"),
        (b'{"event":"metered","at_s":1.0}', "missing required field `usd`"),
        (b'{"at_s":1.0,"usd":1.0}', "event"),
        (b'{"event":"phase_started","at_s":1.0,"phase":"\xff"}', "utf-8"),
        (b"", "truncated"),
    ],
)
def test_a_line_that_is_no_event_is_named(line: bytes, reason: str) -> None:
    data = encode_events(ALL[:2]) + line + b"\n"
    with pytest.raises(RecordError, match=rf"events/m0, line 3 is not an event: .*{reason}"):
        decode_events(data, "events/m0")


def test_numbers_that_are_not_finite_are_read_back() -> None:
    """A metric may be undefined, as recall is where there is nothing to find."""
    event = Evaluated(at_s=1.0, epoch=0, step=1, loss=math.inf, metrics={"recall": math.nan}, num_samples=3, wall_s=0.1)
    (read,) = decode_events(encode_events([event]), "test")
    assert isinstance(read, Evaluated)
    assert read.loss == math.inf
    assert math.isnan(read.metrics["recall"])
