"""Rehearsals of a plan: members, process groups, messages and links are real; compute sleeps its profiled time."""

import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.offer_names import num_threads
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.first_roster import roster_for
from zooid.coordinator.runs.relay import OnEvent, Relay, ignore
from zooid.core.errors import InputError, PlanError
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import PhaseStarted, StepCommitted
from zooid.core.runs.spec import RehearsalSpec
from zooid.core.runs.timeline import Timeline, joined
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.predictor import stage_times, ties_between
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
    """Timeline of the step with the median duration."""

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def rehearse(
    plan: Plan,
    profile: Profile,
    *,
    steps: int = 5,
    store: str | None = None,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Rehearsal:
    """Run some steps of a plan while compute sleeps its profiled time.

    Members exchange messages through the given store, or through this machine's disk. The first step only warms up.
    """
    if profile.model_fingerprint != plan.model_fingerprint:
        raise PlanError(
            f"the profile is of another model than the plan for {plan.job}; give the profile that it was made from"
        )
    if steps < 1:
        raise InputError(f"`steps` is {steps}; give 1 or more")
    partition = [(stage.first_layer, stage.end_layer) for stage in plan.stages]
    stages = [stage_times(profile, *stage, plan.grain_size, is_direct=plan.is_direct) for stage in partition]
    ties = ties_between(profile, partition)
    with scratch_folder(store, "rehearsal") as objects:
        return rehearse_stages(plan, [stages], ties, steps, objects, platform or LocalPlatform(), on_event)


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
