"""Rehearsals of a plan: members, process groups, messages and links are real; compute sleeps its profiled time."""

import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.offer_names import num_threads
from zooid.coordinator.plans.plan_forecast import profiles_of
from zooid.coordinator.runs import resumed_run
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.first_roster import roster_for
from zooid.coordinator.runs.recorded_steps import timeline
from zooid.coordinator.runs.rehearsed_job import rehearse_job
from zooid.coordinator.runs.relay import OnEvent, Relay, ignore
from zooid.coordinator.runs.run_pace import paced_stages
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.spot_replay import replay
from zooid.core.errors import InputError, PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.pace import RehearsalPace, rehearsed_profile
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, PhaseStarted, StepCommitted
from zooid.core.runs.replay import ReplayReport, SpotReplay
from zooid.core.runs.spec import RehearsalSpec
from zooid.core.runs.timeline import Timeline, joined
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.predictor import ties_between
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record

_MIN_TIMEOUT_S = 60.0
_TIMEOUT_FACTOR = 20.0


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal."""

    steps_s: tuple[float, ...]
    """Time of every step but the first, from the end of the step before it, over all members."""
    timeline: Timeline
    """Timeline of the step with the median duration; of the last full step, if a job was trained."""
    run: RunResult | None = None
    """The run of the job that was trained; None without a job."""
    report: ReplayReport | None = None
    """What the spot trace did to the run; None without a trace."""

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def rehearse(
    plan: Plan,
    profile: Profile | Mapping[str, Profile],
    *,
    job: Job | str | Path | None = None,
    steps: int | None = None,
    store: str | None = None,
    slower: float = 1.0,
    checkpoints: CheckpointRule | None = None,
    spot: SpotReplay | None = None,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Rehearsal:
    """Run a plan while compute takes its profiled time, multiplied by `slower`.

    Without a job, members sleep for that time, and exchange zeros through the given store, or through this machine's
    disk. They run `steps` steps, 5 by default, after one that warms up.

    With a job, they also train its model, in the time that they would sleep. The store becomes the folder of a run
    like any other, with checkpoints as its rule says, and `resume` continues it at the same pace. `spot` replays a
    spot trace meanwhile, which kills members.
    """
    measured = profiles_of(plan, profile)
    if any(each.model_fingerprint != plan.model_fingerprint for each in measured.values()):
        raise PlanError(
            f"the profile is of another model than the plan for {plan.job}; give the profile that it was made from"
        )
    pace = RehearsalPace(profiles={name: rehearsed_profile(each, slower) for name, each in measured.items()})
    if job is not None:
        if steps is not None or store is None:
            raise InputError("a job is given, which has its own number of steps; give a `store`, and leave out `steps`")
        return _rehearse_job(job, plan, pace, store, checkpoints, spot, on_event, platform)
    if checkpoints is not None or spot is not None:
        raise InputError("checkpoints and a spot trace belong to a run; give the job that it trains, too")
    num_steps = 5 if steps is None else steps
    if num_steps < 1:
        raise InputError(f"`steps` is {steps}; give 1 or more")
    rows = [
        [paced_stages(pace, plan, offer)[stage] for stage, offer in enumerate(offers)] for offers in plan.offer_rows
    ]
    ties = ties_between(next(iter(measured.values())), plan.partition)
    with scratch_folder(store, "rehearsal") as objects:
        return rehearse_stages(plan, rows, ties, num_steps, objects, platform or LocalPlatform(), on_event)


def _rehearse_job(
    job: Job | str | Path,
    plan: Plan,
    pace: RehearsalPace,
    store: str,
    checkpoints: CheckpointRule | None,
    spot: SpotReplay | None,
    on_event: OnEvent,
    platform: Platform[Any] | None,
) -> Rehearsal:
    ends_s: dict[int, float] = {}
    report: ReplayReport | None = None

    def take(event: Event) -> None:
        if isinstance(event, StepCommitted):
            ends_s[event.step] = event.at_s
        on_event(event)

    def start(platform: Platform[Any] | None, on_event: OnEvent) -> RunResult:
        return rehearse_job(job, plan, pace, store=store, checkpoints=checkpoints, on_event=on_event, platform=platform)

    def resume(platform: Platform[Any], on_event: OnEvent) -> RunResult:
        return resumed_run.resume(store, on_event=on_event, platform=platform)

    if spot is None:
        result = start(platform, take)
    elif platform is not None:
        raise InputError("a platform and a spot trace are given; the trace is replayed on this machine")
    else:
        result, report = replay(spot, plan, store, start, resume, take)
    steps_s = tuple(end_s - ends_s[step - 1] for step, end_s in ends_s.items() if step - 1 in ends_s)
    return Rehearsal(steps_s, timeline(store).timeline, result, report)


def rehearse_stages(
    plan: Plan,
    stages: Sequence[Sequence[StageTimes]],
    ties: Sequence[Tie],
    steps: int,
    store: ObjectStore,
    platform: Platform[Any],
    on_event: OnEvent = ignore,
) -> Rehearsal:
    """Rehearse a plan, given the times of the stages of each replica, or one row if all replicas are alike."""
    run = secrets.token_hex(4)
    roster = roster_for(plan, run, 0, 0)
    store.put(keys.plan(0), encode_record(plan))
    store.put(keys.roster(0), encode_record(roster))
    specs = [
        RehearsalSpec(
            run=run,
            member=seat.name,
            store=store.url,
            num_threads=num_threads(plan.offer_of(seat.stage, replica)),
            stages=tuple(stages[replica if len(stages) > 1 else 0]),
            ties=tuple(ties),
            num_steps=steps + 1,
            timeout_s=max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * (plan.predicted.step_s if plan.predicted else 0.0)),
        )
        for seat in roster.seats
        for replica in [roster.replica_of(seat.name) or 0]
    ]
    on_event(PhaseStarted(at_s=time.time(), phase="rehearse"))
    relay = Relay(store, lambda event: on_event(event) if isinstance(event, StepCommitted) else None)
    Crew(platform, store, checks_input=False).run("worker", specs, plan.member_offers, relay)
    timelines = [
        joined(read_record(store, keys.timeline(step, member.name), Timeline) for member in roster.members)
        for step in range(steps + 1)
    ]
    ends_s = [timeline.start_at_s + timeline.step_s for timeline in timelines]
    steps_s = [end_s - before_s for before_s, end_s in pairwise(ends_s)]
    by_duration = sorted(zip(steps_s, timelines[1:], strict=True), key=lambda pair: pair[0])
    return Rehearsal(tuple(steps_s), by_duration[len(by_duration) // 2][1])
