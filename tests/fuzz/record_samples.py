"""Valid records of every kind that a run, a user or another machine may hand over, with every field in use."""

from tests.unit.predicted import a_profile, owned, rented
from tests.unit.test_records import a_link, a_plan, a_roster
from zooid.core.plans.all_reduce_samples import AllReduceSample, AllReduceSamples
from zooid.core.plans.forecast import Bottleneck, Forecast, Gain, MeasuredRun, Rate
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Limits
from zooid.core.plans.search_result import Search
from zooid.core.plans.stage import Bucket, StageTimes, Tie
from zooid.core.records import FileRecord
from zooid.core.resources.link import Links, MissingLink
from zooid.core.resources.size import Size
from zooid.core.resources.tariff import Tariff
from zooid.core.runs.allowance import Allowance, PriceList
from zooid.core.runs.batch_history import BatchPiece
from zooid.core.runs.checkpoint import CheckpointManifest, CheckpointRule, Evaluation, Ledger, SampleFacts, Shard
from zooid.core.runs.gradient_noise import NoiseEstimate
from zooid.core.runs.member_records import Exit, MemberEnd, MemberHandle, MemberStart
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.requests import LayoutRequest, Notice
from zooid.core.runs.roster import Answer, Joining, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.core.runs.shard import SampleFiles, ShardTable
from zooid.core.runs.spec import (
    Adoption,
    Failure,
    ProbeMember,
    ProbeSpec,
    ProfilerSpec,
    RehearsalSpec,
    RunClaim,
    SweepSpec,
    WorkerSpec,
)
from zooid.core.runs.state_header import StateHeader, TensorHeader
from zooid.core.runs.steering import Steering
from zooid.core.runs.step_measurements import MessageTiming, ReduceTiming, StepMeasurements, Timing
from zooid.core.runs.stop_request import StopRequest
from zooid.core.runs.ticket import Ticket
from zooid.core.runs.timeline import Interval, Timeline
from zooid.planner import search, single

_MEMBER = {"run": "run-7", "member": "r0s0", "store": "s3://bucket/run-7", "num_threads": 2}
_NUMBERS = StepNumbers(
    loss_sum=1.5,
    weight=8.0,
    square_sums=(0.5, 0.25),
    batch_size=16,
    rate_factor=0.5,
    first_square_sum=0.75,
    noise_square_sum=0.5,
)
_PROBERS = (ProbeMember(name="r0s0", site="here"), ProbeMember(name="p1", site="there"))

TIMELINE = Timeline(
    start_at_s=1.7e9,
    intervals=(
        Interval(member="r0s0", lane="compute", action="0F0", start_s=0.0, end_s=0.1),
        Interval(member="r0s0", lane="uplink", action="0SEND_F0", start_s=0.1, end_s=0.2),
        Interval(member="r0s1", lane="downlink", action="1RECV_F0", start_s=0.0, end_s=0.3),
        Interval(member="r0s1", lane="compute", action="1F0", start_s=0.3, end_s=0.5),
        Interval(member="r0s1", lane="reduce", action="1REDUCE0", start_s=0.5, end_s=0.7),
        Interval(member="r0s0", lane="compute", action="0COMMIT", start_s=0.7, end_s=0.8),
    ),
)

MEASUREMENTS = StepMeasurements(
    member="r0s0",
    replica=0,
    stage=0,
    num_grains=2,
    num_steps=100,
    num_sampled=50,
    step=Timing(median_s=0.5, spread=0.1),
    between=Timing(median_s=0.001),
    forward=Timing(median_s=0.05, spread=0.1),
    backward=Timing(median_s=0.1, spread=0.1),
    update=Timing(median_s=0.01),
    vote=Timing(median_s=0.02),
    starts_s={"0F0": 0.1, "0B0": 0.15, "0F1": 0.25, "0B1": 0.3, "0COMMIT": 0.4},
    messages=(MessageTiming(kind="RECV_B", peer="r0s1", num_bytes=1000, time=Timing(median_s=0.01)),),
    reduces=(ReduceTiming(number=0, num_bytes=1000, num_ranks=2, time=Timing(median_s=0.1)),),
    checkpoint=Timing(median_s=0.3),
)


def a_search() -> Search:
    limits = Limits(max_members=4, deadline_s=1e6)
    at_risk = rented(interruptions_per_hour=0.5, lifetime_s=900.0)
    return search(single(a_profile(), at_risk), limits, "cheapest")


def a_forecast() -> Forecast:
    plan = search(single(a_profile(), owned()), Limits(), "fastest").pick
    rate = Rate(samples_per_s=10.0, usd_per_million_samples=3.0, samples_per_usd=1e5)
    return Forecast(
        job="job.py",
        layout=plan.layout,
        prices="this machine",
        prediction=plan.prediction,
        step_p50_s=0.5,
        granularity=2.0,
        rate=rate,
        bottleneck=Bottleneck(kind="compute", member="r0s0", share=0.5, sentence="it computes"),
        gains=(Gain(change="replica", num_members=2, batch_size=16, rate=rate, speedup=0.5, usd_change=0.1),),
        timeline=TIMELINE,
        notes=("a note",),
        measured=MeasuredRun(
            run="file:///runs/7",
            num_steps=3,
            step_s=0.5,
            step_p50_s=0.5,
            step_p95_s=0.6,
            timeline=TIMELINE,
            run_s=9.0,
            members_usd=0.1,
        ),
    )


def a_manifest() -> CheckpointManifest:
    return CheckpointManifest(
        step=8,
        model_fingerprint="abc",
        samples=SampleFacts(num_samples=40, batch_size=8, grain_size=2, epochs=4, seed=0),
        data_shards="0123",
        optimizer_class="AdamW",
        optimizer_settings={"lr": ("0.001",)},
        shards=(Shard(key="checkpoints/00000008/model-00001-of-00001.safetensors", names=("a", "b")),),
        optimizer=(Shard(key="checkpoints/00000008/optimizer-00001-of-00001.safetensors", names=("a",)),),
        constants=(Shard(key="checkpoints/constants.safetensors", names=("c",)),),
        aliases={"tied": "a"},
        loss_scale=8.0,
        num_good_steps=3,
        ledger=Ledger(
            evaluations=(Evaluation(step=4, numbers={"loss": 1.5, "accuracy": "nan"}),),
            best_step=4,
            by_request=True,
            batches=(BatchPiece(first_step=5, batch_size=16, rate_factor=0.5),),
            noise=NoiseEstimate(num_steps=3, square_norm=0.5, trace=2.0),
        ),
    )


def records() -> list[FileRecord]:
    """One of each kind."""
    stage = StageTimes(
        forward_s=0.1,
        backward_s=0.2,
        out_bytes=100.0,
        buckets=(Bucket(num_bytes=8, at_share=1.0),),
        reduce_s=0.1,
        update_s=0.1,
    )
    return [
        a_plan(shares=(4, 4), links=(a_link(),)),
        a_profile(),
        RehearsalPace(profiles={"local": a_profile()}, num_steps=3),
        a_roster(
            change=3,
            copies=(RosterSeat(name="c0", stage=1),),
            newcomers=("c0",),
            former=("m9",),
            num_planned_replicas=3,
            ruling=Ruling(kind="stands", numbers=_NUMBERS),
            grains=((0, 1), (2,)),
        ),
        Answer(member="m0", change=2, num_applied=7, is_prepared=True, applied=_NUMBERS, suspects=("m1",)),
        Joining(member="m5", change=2),
        a_roster(
            change=4,
            guests=(RosterSeat(name="g0", stage=0),),
            attempt=2,
            plan="planner-1",
            ruling=Ruling(kind="planned", numbers=_NUMBERS),
        ),
        PlannedChange(
            run="run-7",
            number=1,
            change=3,
            attempt=2,
            cause="2x1 was asked for",
            members=(RosterMember(name="m0", stage=0, replica=0), RosterMember(name="m5", stage=0, replica=1)),
            shares=(2, 1),
            copies=(RosterSeat(name="c0", stage=0),),
            plan="planner-1",
            first_step=40,
        ),
        LayoutRequest(num_replicas=2, num_stages=3),
        Notice(member="m5", source="the signal SIGUSR1", left_s=30.0),
        StateHeader(
            step=7,
            loss_scale=2.0,
            num_good_steps=3,
            ledger=Ledger(best_step=4),
            model=(TensorHeader(name="weight", dtype="float32", shape=(2, 3)),),
            optimizer=(TensorHeader(name="exp_avg:weight", dtype="float32", shape=(2, 3)),),
        ),
        Links(
            zooid_version="1",
            date="2025-01-01",
            links=(a_link(), a_link(num_streams=4)),
            missing=(MissingLink(from_site="a", to_site="b", reason="refused"),),
        ),
        a_search(),
        a_forecast(),
        TIMELINE,
        MEASUREMENTS,
        a_manifest(),
        RunClaim(
            run="run-7",
            job_file="/home/me/job.py",
            checkpoints=CheckpointRule(every_s=600.0, is_automatic=True, between_rollbacks_s=7200.0, pause_s=0.5),
            nonce="00",
            deadline_at_s=1.8e9,
            budget_usd=5.0,
        ),
        Adoption(run="run-7", roster=1, nonce="00"),
        StopRequest(run="run-7", asked_at_s=1.5, asked_from="laptop"),
        PriceList(usd_per_hour={"aws.lambda.1769": 0.3}),
        Steering(offers=(rented(), owned()), quotas={"aws": 4}, max_members=8, seeks_savings=True, look_s=5.0),
        Allowance(
            at_s=1.7e9,
            deadline_at_s=1.8e9,
            budget_usd=5.0,
            tariffs=(Tariff(started_at_s=1.6e9, usd_per_hour=0.1, billing_grain_s=1.0, billing_minimum_s=60.0),),
            other_usd=0.5,
            other_usd_per_s=1e-6,
        ),
        MemberHandle(
            run="7", member="r0s0", platform="local", offer="local", launched_at_s=1.5, place={"machine": "here"}
        ),
        MemberStart(member="r0s0", nonce="3f"),
        MemberEnd(member="r0s0", exit=Exit(-9, 10**9, 10**9, 10**8, 1.5, 1.6, None, "too large", "its last words")),
        Ticket(
            run="7", member="r0s0", roster=0, program="worker", spec_url="file:///run/specs/000000/r0s0.json",
            spec_digest="3f", num_threads=1, size=Size(0.5, 10**9), lifetime_s=900.0, prefix=("env",),
        ),
        WorkerSpec(task="train", roster=0, timeout_s=120.0, job_file="job.py", pace=(stage,), **_MEMBER),  # type: ignore[arg-type]
        ProfilerSpec(site="here", num_neighbours=1, memory_bytes=10**9, job_file="job.py", **_MEMBER),  # type: ignore[arg-type]
        ProbeSpec(
            members=_PROBERS, num_repeats=3, timeout_s=9.0, ends=("store",), num_streams=(1, 4), seconds=1.0,
            **_MEMBER,  # type: ignore[arg-type]
        ),
        SweepSpec(
            members=_PROBERS, num_repeats=3, timeout_s=9.0, library="gloo", offer="local", num_bytes=(1024,),
            num_members=(2,), concurrency=(1, 2), **_MEMBER,  # type: ignore[arg-type]
        ),
        RehearsalSpec(
            pace=(stage,), ties=(Tie(stages=(0, 1), num_bytes=8),), num_steps=3, timeout_s=9.0, task="train",
            job_file="", **_MEMBER,  # type: ignore[arg-type]
        ),
        Failure(
            member="r0s0",
            error="JobError",
            message="no",
            traceback="Traceback",
            user_frames="job.py",
            is_input_error=True,
            is_consequence=False,
        ),
        AllReduceSamples(
            zooid_version="1",
            samples=(
                AllReduceSample(
                    library="gloo", offer="local", site="here", num_bytes=1024, num_members=2, concurrency=1,
                    took_s=0.1, at_s=1.7e9,
                ),
            ),
        ),
        ShardTable(size_bytes=4096, samples=(SampleFiles("0001", 123, (("cls", 512, 1), ("npy", 1536, 40))),)),
    ]  # fmt: skip
