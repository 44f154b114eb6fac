"""A training run from job to checkpoint: everything is refused, decided and written down before members start."""

import contextlib
import math
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zooid.coordinator.crew import Crew
from zooid.coordinator.offers import LOCAL, prices_in_words, resolve_offer
from zooid.coordinator.planning import check_job_file, ignore, measure, num_threads
from zooid.coordinator.relay import OnEvent, Relay
from zooid.coordinator.scratch import refuse_memory
from zooid.core import keys
from zooid.core.errors import InputError, MemberFailed, ObjectExists, StoreError
from zooid.core.events import (
    CheckpointSaved,
    Event,
    MemberExited,
    Metered,
    PhaseStarted,
    RunFinished,
    RunStarted,
    StepCommitted,
)
from zooid.core.plan import Limits, Plan
from zooid.core.records import encode_record
from zooid.core.roster import Roster, RosterMember
from zooid.core.spec import RunClaim, WorkerSpec
from zooid.planner import Goal, find_plan
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.predictor import bill_usd
from zooid.schedule.samples import even_shares
from zooid.store import EventWriter, ObjectStore, check_create_only, clear, open_store, sweep

_LEAST_TIMEOUT_S = 120.0
_TIMEOUT_FACTOR = 10.0
"""A member that waits so many times a predicted step or start-up for a peer gives up. The coordinator notices a lost
member long before; this is for members that are left alone."""
_METER_INTERVAL_S = 0.5


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    store: str
    plan: Plan
    checkpoint: str
    """URL of the last checkpoint's folder; `zooid.load_checkpoint` reads it."""
    step_s: float
    """Median of the full steps, the first one left out."""
    wall_s: float
    usd: float
    """At the plan's prices."""
    losses: tuple[float, ...]
    """Of every step, in order."""


def train(
    job_file: str | Path,
    *,
    store: str,
    plan: Plan | None = None,
    limits: Limits | None = None,
    goal: Goal | None = None,
    on: str | None = None,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> RunResult:
    """Train a job to its end; without a plan it is profiled and planned first. The store's folder becomes the run's."""
    file = check_job_file(job_file)
    offer = resolve_offer(on or LOCAL)
    if plan is not None:
        _check_given(plan, limits, goal, on)
    objects, name = _claim_folder(store)
    with _Run(objects, name, platform or LocalPlatform(), file, on_event) as run:
        if plan is None:
            run.enter("profile")
            measured = measure(file, objects, offer, run.platform, run.relay)
            run.enter("plan")
            plan = find_plan(measured, offer, limits or Limits(), goal or "fastest")
        return run.train(plan)


class _Run:
    """What a run needs from its start to its end. The folder was empty when it was claimed, so that all in it is ours.

    Leaving removes what members exchanged, however it is left; a run that never began leaves its folder empty again.
    """

    def __init__(
        self, store: ObjectStore, name: str, platform: Platform[Any], job_file: Path, on_event: OnEvent
    ) -> None:
        self.platform = platform
        self.relay = Relay(store, self._take)
        self._store = store
        self._job_file = job_file
        self._on_event = on_event
        self._name = name
        self._has_begun = False
        self._writer = EventWriter(store, "coordinator")
        self._steps: list[StepCommitted] = []
        self._checkpoint = ""

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with contextlib.suppress(StoreError):  # a store that fails now costs a few objects, not the run
            self._writer.close()
            self.relay.flush()
            for folder in (keys.COMM, keys.PROBES) if self._has_begun else ("",):
                clear(self._store, folder)
        sweep(self._store, "", min_age_s=0.0)  # all members are gone: what is staged will never be finished

    def enter(self, phase: str) -> None:
        self._emit(PhaseStarted(at_s=time.time(), phase=phase))

    def _take(self, event: Event) -> None:
        match event:
            case StepCommitted():
                self._steps.append(event)
            case CheckpointSaved():
                self._checkpoint = event.url
        self._on_event(event)

    def train(self, plan: Plan) -> RunResult:
        self._store.put(keys.PLAN, encode_record(plan))
        self.enter("prepare")
        with Crew(self.platform, self._store, checks_input=True) as crew:
            crew.start("worker", [self._spec("preparer", "prepare", plan)])
            crew.wait(self.relay.poll)
        self.enter("train")
        roster = _first_roster(plan, self._name)
        self._store.create(keys.roster(0), encode_record(roster))
        self._emit(_run_started(plan, roster, self._store))
        begin_s = time.monotonic()
        self._has_begun = True
        with Crew(self.platform, self._store, checks_input=False) as crew:
            crew.start("worker", [self._spec(member.name, "train", plan) for member in roster.members])
            try:
                crew.wait(self._meter(plan, crew))
            except MemberFailed as failure:
                self._emit(MemberExited(at_s=time.time(), member=failure.member, exit_text=failure.exit_text))
                raise
            usd = _bill(plan, crew)
        self.relay.flush()
        wall_s = time.monotonic() - begin_s
        step_s = _median_step_s(self._steps, plan)
        self._emit(RunFinished(at_s=time.time(), wall_s=wall_s, step_s=step_s, usd=usd, checkpoint=self._checkpoint))
        losses = tuple(step.loss for step in sorted(self._steps, key=lambda step: step.step))
        return RunResult(self._store.url, plan, self._checkpoint, step_s, wall_s, usd, losses)

    def _meter(self, plan: Plan, crew: Crew) -> Callable[[], None]:
        """Relays events, and tells now and then what the members have cost; that is not worth an object each time."""
        last_s = 0.0

        def poll() -> None:
            nonlocal last_s
            if time.monotonic() - last_s > _METER_INTERVAL_S:
                last_s = time.monotonic()
                self._on_event(Metered(at_s=time.time(), usd=_bill(plan, crew)))
            self.relay.poll()

        return poll

    def _spec(self, member: str, task: Literal["prepare", "train"], plan: Plan) -> WorkerSpec:
        return WorkerSpec(
            run=self._name,
            member=member,
            store=self._store.url,
            job_file=str(self._job_file),
            num_threads=num_threads(plan.offers[0]),
            task=task,
            roster=0,
            timeout_s=max(_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR * max(plan.prediction.step_s, plan.prediction.startup_s)),
        )

    def _emit(self, event: Event) -> None:
        self._writer.write(event)


def _check_given(plan: Plan, limits: Limits | None, goal: Goal | None, on: str | None) -> None:
    """A plan that is given is run as it is, on what this process can start."""
    if limits is not None or goal is not None or on is not None:
        raise InputError(
            "a plan holds its layout and its offers; give limits, a goal and `on` when planning, not with it"
        )
    for offer in plan.offers:
        if offer.platform != LOCAL:
            raise InputError(
                f"the plan stands on {offer.name}, but members can be started on {LOCAL} only; plan for that"
            )


def _claim_folder(url: str) -> tuple[ObjectStore, str]:
    """The run's folder and name. The folder is one that members can share, honest about create-only puts, and empty."""
    refuse_memory(url)
    store = open_store(url)
    if not store.is_empty():
        raise InputError(f"{url} is not empty: it holds a run or something else; give a folder that does not exist yet")
    check_create_only(store)
    claim = RunClaim(run=secrets.token_hex(4))
    try:
        store.create(keys.CLAIM, encode_record(claim))
    except ObjectExists as error:
        raise InputError(f"another run has just begun in {url}; give another folder") from error
    return store, claim.run


def _first_roster(plan: Plan, run: str) -> Roster:
    num_grains = math.ceil(plan.batch_size / plan.grain_size)
    return Roster(
        run=run,
        number=0,
        resume_step=0,
        members=tuple(
            RosterMember(name=f"r{replica}s{stage}", stage=stage, replica=replica)
            for replica in range(plan.num_replicas)
            for stage in range(len(plan.stages))
        ),
        shares=even_shares(num_grains, plan.num_replicas),
    )


def _run_started(plan: Plan, roster: Roster, store: ObjectStore) -> RunStarted:
    return RunStarted(
        at_s=time.time(),
        run=roster.run,
        store=store.url,
        layout=plan.layout,
        num_steps=plan.prediction.num_steps,
        first_step=roster.resume_step,
        batch_size=plan.batch_size,
        predicted_step_s=plan.prediction.step_s,
        predicted_run_s=plan.prediction.run_s,
        predicted_usd=plan.prediction.run_usd,
        members=tuple(member.name for member in roster.members),
        prices=prices_in_words(plan.offers[0]),
    )


def _bill(plan: Plan, crew: Crew) -> float:
    """What the members have cost so far, at the plan's prices; they were started stage by stage, replica by replica."""
    offers = [plan.offer_of(stage) for _ in range(plan.num_replicas) for stage in range(len(plan.stages))]
    return math.fsum(bill_usd(offer, running_s) for offer, running_s in zip(offers, crew.running_s(), strict=True))


def _median_step_s(steps: list[StepCommitted], plan: Plan) -> float:
    """Full steps only, without the first, which also warms up."""
    full = [step.step_s for step in steps if step.step > 0 and step.num_samples == plan.batch_size]
    return statistics.median(full or [step.step_s for step in steps])
