"""Rehearsals of a plan: members, process groups, messages and links are real; compute sleeps its profiled time."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.markets import profile_for
from zooid.coordinator.plans.plan_forecast import profiles_of
from zooid.coordinator.runs import resumed_run
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.recorded_steps import timeline
from zooid.coordinator.runs.rehearsed_job import rehearse_job
from zooid.coordinator.runs.relay import OnEvent, ignore
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.sleeping_run import SleepingRun
from zooid.coordinator.runs.spot_replay import read_spot_trace, replay
from zooid.core.errors import InputError, PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.pace import RehearsalPace, rehearsed_profile
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.events import Event, MemberExited, PhaseStarted, RosterChanged, StepCommitted
from zooid.core.runs.replay import ReplayReport, SpotReplay
from zooid.core.runs.steering import Steering
from zooid.core.runs.timeline import Timeline, joined
from zooid.platforms import Platform
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record

_DEFAULT_STEPS = 5


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
    limits: Limits | None = None,
    steering: Steering | None = None,
    fleets: Sequence[Plan] = (),
    checkpoints: CheckpointRule | None = None,
    trace: str | Path | None = None,
    trace_speed: float = 60.0,
    seed: int = 0,
    on_event: OnEvent = ignore,
    platform: Platform | None = None,
) -> Rehearsal:
    """Run a plan while compute takes its profiled time, multiplied by `slower`.

    Without a job, members sleep for that time, and exchange zeros through the given store, or through this machine's
    disk. They run `steps` steps, 5 by default, after one that warms up. Their checkpoints have no tensors.

    With a job, they also train its model, in the time that they would sleep. The store becomes the folder of a run
    like any other, and `resume` continues it at the same pace. It may have limits, of which deadline and budget count,
    and `steering`: then it may go on with other members, such as those of `fleets`, which are other plans.

    `trace` is the file of a spot trace that is replayed meanwhile, and kills members. `trace_speed` of its seconds pass
    in one second, and the seed decides which members are killed.
    """
    if trace is not None and platform is not None:
        raise InputError("a platform and a spot trace are given; the trace is replayed on this machine")
    spot = None if trace is None else SpotReplay(trace=read_spot_trace(Path(trace)), speed=trace_speed, seed=seed)
    measured = profiles_of(plan, profile)
    if any(each.model_fingerprint != plan.model_fingerprint for each in measured.values()):
        raise PlanError(
            f"the profile is of another model than the plan for {plan.job}; give the profile that it was made from"
        )
    if steering is not None and isinstance(profile, Mapping):  # the planner needs those of other offers, too
        measured |= {offer.name: profile_for(offer, profile) for offer in steering.offers}
    profiles = {name: rehearsed_profile(each, slower) for name, each in measured.items()}
    if job is not None:
        if steps is not None or store is None:
            raise InputError("a job is given, which has its own number of steps; give a `store`, and leave out `steps`")
        rehearsed = partial(
            rehearse_job,
            job,
            plan,
            RehearsalPace(profiles=profiles),
            store=store,
            limits=limits,
            steering=steering,
            fleets=fleets,
            checkpoints=checkpoints,
        )
        return _rehearse_job(rehearsed, plan, store, spot, on_event, platform)
    if limits is not None or steering is not None:
        raise InputError("limits or `steering` are given without a job, whose steps they would limit; give a `job`")
    num_steps = _DEFAULT_STEPS if steps is None else steps
    if num_steps < 1:
        raise InputError(f"`steps` is {steps}; give 1 or more")
    pace = RehearsalPace(profiles=profiles, num_steps=num_steps + 1)
    rule = checkpoints or DEFAULT_RULE
    with opened_platform(platform, plan.offers) as used_platform, scratch_folder(store, "rehearsal") as objects:
        return rehearse_asleep(plan, pace, objects, used_platform, checkpoints=rule, spot=spot, on_event=on_event)


def _rehearse_job(
    start_job: Callable[..., RunResult],
    plan: Plan,
    store: str,
    spot: SpotReplay | None,
    on_event: OnEvent,
    platform: Platform | None,
) -> Rehearsal:
    ends_s: dict[int, float] = {}
    report: ReplayReport | None = None

    def take(event: Event) -> None:
        if isinstance(event, StepCommitted):
            ends_s[event.step] = event.at_s
        on_event(event)

    def start(platform: Platform | None, on_event: OnEvent) -> RunResult:
        return start_job(on_event=on_event, platform=platform)

    def resume(platform: Platform, on_event: OnEvent) -> RunResult:
        return resumed_run.resume(store, on_event=on_event, platform=platform)

    if spot is None:
        result = start(platform, take)
    else:
        result, report = replay(spot, plan, store, start, resume, take)
    return Rehearsal(tuple(_durations(ends_s).values()), timeline(store).timeline, result, report)


def rehearse_asleep(
    plan: Plan,
    pace: RehearsalPace,
    store: ObjectStore,
    platform: Platform,
    *,
    checkpoints: CheckpointRule = DEFAULT_RULE,
    spot: SpotReplay | None = None,
    on_event: OnEvent = ignore,
) -> Rehearsal:
    """Run members that have no job at this pace, in an empty folder. Their checkpoints have no tensors."""
    ends_s: dict[int, float] = {}
    report: ReplayReport | None = None
    run = SleepingRun(store, plan, pace, checkpoints)
    on_event(PhaseStarted(at_s=time.time(), phase="rehearse"))

    def take(event: Event) -> None:
        if isinstance(event, StepCommitted):
            ends_s[event.step] = event.at_s
        is_of_run = isinstance(event, PhaseStarted) and event.phase == "train"
        if isinstance(event, StepCommitted | RosterChanged | MemberExited | PhaseStarted) and not is_of_run:
            on_event(event)

    if spot is None:
        run.start(platform, take)
    else:
        _, report = replay(spot, run.plan, store.url, run.start, run.resume, take)
    timelines = {
        step: joined(read_record(store, key, Timeline) for key in store.list(keys.timelines_of(step)))
        for step in keys.recorded_steps(store.list_folders(keys.TIMELINES))
    }
    # A step that stands although a member was lost in it has no timeline.
    steps_s = _durations(ends_s | {step: each.start_at_s + each.step_s for step, each in timelines.items()})
    by_duration = sorted(steps_s.keys() & timelines, key=lambda step: steps_s[step])
    return Rehearsal(tuple(steps_s.values()), timelines[by_duration[len(by_duration) // 2]], None, report)


def _durations(ends_s: Mapping[int, float]) -> dict[int, float]:
    """Return the time of every step from the end of the step before it, in order."""
    return {step: ends_s[step] - ends_s[step - 1] for step in sorted(ends_s) if step - 1 in ends_s}
