"""What beginning a run and going on with one have in common: members are checked, started, watched and ended."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from zooid.coordinator.crew import Crew, wait_for_all
from zooid.coordinator.lease import Lease
from zooid.coordinator.leftovers import clear_earlier, clear_exchanged
from zooid.coordinator.offers import num_threads, prices_in_words
from zooid.coordinator.relay import OnEvent, Relay
from zooid.core import keys
from zooid.core.errors import CheckpointError, InputError, MemberFailed, ObjectExists, StoreError
from zooid.core.events import (
    CheckpointSaved,
    Event,
    MemberExited,
    Metered,
    ModelTraced,
    OptimizerChanged,
    PhaseStarted,
    RunFinished,
    RunStarted,
    StepCommitted,
)
from zooid.core.offer import Offer
from zooid.core.plan import FixedLayout, Plan, Prediction
from zooid.core.records import decode_record, encode_record
from zooid.core.roster import Roster, RosterMember
from zooid.core.spec import RunClaim, WorkerSpec
from zooid.platforms import Platform
from zooid.schedule.samples import even_shares
from zooid.store import EventWriter, Fence, ObjectStore, RetryingStore, clear, sweep
from zooid.store.checkpoints import last_step, read_manifest
from zooid.store.fences import GRACE_S

_LEAST_TIMEOUT_S = 120.0
_TIMEOUT_FACTOR = 10.0
"""A member that waits so many times a predicted step or start-up for a peer gives up. The coordinator notices a lost
member long before; this is for members that are left alone."""
_UNKNOWN_TIMEOUT_S = 1800.0
"""The same, where nobody knows how long a step takes."""
_LOOK_S = 0.02
_METER_INTERVAL_S = 0.5
_HASTE_S = 10.0
"""Patience with the store when a run is left with an error, by Ctrl-C for one: nobody wants to wait much longer."""
_GRACE_LOOK_S = 0.1
_PREPARING = {
    True: "while the initial weights were being written",
    False: "while the job was being compared with the checkpoint",
}
"""What the one member does that comes before a roster: of a new run, and of one that goes on."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    store: str
    plan: Plan
    checkpoint: str
    """URL of the last checkpoint's folder; `zooid.load_checkpoint` reads it."""
    best_checkpoint: str | None
    """URL of the best checkpoint's folder; None where the job has kept none as the best."""
    stopped: str
    """Why the run ended before its last step; empty where it did not."""
    step_s: float
    """Median of the full steps, the first one left out."""
    wall_s: float
    usd: float
    """At the plan's prices."""
    losses: tuple[float, ...]
    """Of every step that was run, in order; a run that was resumed begins with the step that it went on with."""


class Run:
    """A run from its claim to its end, under the roster whose number the claim has.

    Entering writes the claim of a run that goes on. Leaving removes what members exchanged, however it is left. Where
    no member ever trained, all that was written for this roster goes too: a new run's folder is then empty again, and
    one that was to be resumed is as it was, but for the claim, whose number is never used again.
    """

    def __init__(
        self, store: ObjectStore, claim: RunClaim, number: int, platform: Platform[Any], on_event: OnEvent
    ) -> None:
        self.platform = platform
        self._store = RetryingStore(store)  # its own patience, which is short when the run is left with an error
        self._claim = claim
        self._number = number
        self._on_event = on_event
        self._has_begun = False
        self._has_lost_members = False
        self._fence = Fence(self._store, number)
        self._lease = Lease(self._store, number, self._fence)
        self._writer = EventWriter(self._store, "coordinator", number, self._fence)
        self.relay = Relay(self._store, self._take, number, self._lease.check)
        self._steps: dict[int, StepCommitted] = {}
        """The steps that were told, by number."""
        self._checkpoint = ""
        self._settings: dict[str, tuple[str, ...]] = {}
        self._trace = ""
        self._preparers: list[Crew] = []
        """The member that still writes the initial weights, while others may already start."""

    @property
    def job_file(self) -> Path:
        return Path(self._claim.job_file)

    def __enter__(self) -> "Run":
        try:
            self._lease.begin()  # before the claim: whoever finds the claim also finds its holder alive
            if self._number > 0:
                self._store.create(keys.claim(self._number), encode_record(self._claim))
        except ObjectExists as error:
            self._lease.end()
            raise InputError(
                f"another coordinator has just gone on with the run in {self._store.url}; wait for its end"
            ) from error
        except StoreError as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self._store.shorten(_HASTE_S)
        self._lease.fall_silent()
        with contextlib.suppress(StoreError):  # a store that fails now costs a few objects, not the run
            self._writer.close()
            self.relay.flush()
            self._tidy()
        self._lease.end()

    def wait_for_earlier_members(self) -> None:
        """Wait until members that a killed coordinator has left behind have seen this run's claim, and have ended."""
        self.enter("waiting until members that were left behind have ended")
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            self._lease.check()
            time.sleep(_GRACE_LOOK_S)

    def _tidy(self) -> None:
        """Remove what is this run's own; where its claim is still the newest, also what earlier ones have left."""
        clear_exchanged(self._store, self._claim.run, self._number)
        if self._fence.is_superseded():
            return
        if self._number == 0 and not self._has_begun:
            clear(self._store, "")
        else:
            clear_earlier(self._store, self._claim.run, self._number)
            clear(self._store, keys.PROBES)
            if not self._has_begun:
                self._store.delete([keys.plan(self._number)])
                for folder in (keys.specs_under(self._number), keys.failures_under(self._number)):
                    clear(self._store, folder)
        sweep(self._store, "", min_age_s=0.0)  # all members are gone: what is staged will never be finished

    def enter(self, phase: str) -> None:
        self._emit(PhaseStarted(at_s=time.time(), phase=phase))

    @contextlib.contextmanager
    def preparing(self, given: Plan | FixedLayout) -> Iterator[Plan]:
        """While inside, one member checks a new run's job and writes checkpoint 0.

        It makes the plan, too, where only a layout is given. Inside begins when the model is traced: what comes then
        can go on while weights are being written, and `train` does.
        """
        self.enter("prepare")
        if isinstance(given, Plan):
            self._store.put(keys.plan(self._number), encode_record(given))
            offers = given.member_offers
        else:
            offers = [given.offer]
        largest = max(offers, key=lambda offer: offer.memory_bytes)  # it holds the whole model
        with Crew(self.platform, self._store, checks_input=True, during=_PREPARING[True]) as crew:
            crew.start("worker", [self._spec("preparer", "prepare", largest, given)], [largest])
            while not (crew.is_done() or self._trace):
                self.relay.poll()
                time.sleep(_LOOK_S)
            self.relay.flush()  # one that is done already has told of its trace
            self._preparers = [crew]
            yield given if isinstance(given, Plan) else read_plan(self._store, self._number)

    def check(self, plan: Plan) -> None:
        """One member compares the job with the last checkpoint of a run that goes on."""
        self._store.put(keys.plan(self._number), encode_record(plan))
        self.enter("checking the job against the checkpoint")
        with Crew(self.platform, self._store, checks_input=True, during=_PREPARING[False]) as crew:
            largest = max(plan.member_offers, key=lambda offer: offer.memory_bytes)  # it holds the whole model
            crew.start("worker", [self._spec("checker", "check", largest, plan)], [largest])
            crew.wait(self.relay.poll)
        self.relay.flush()

    def train(self, plan: Plan, first_step: int = 0) -> RunResult:
        """Start a member for every seat, and wait for the end of the last step."""
        roster = structs.replace(
            roster_for(plan, self._claim.run, self._number, first_step), optimizer_settings=self._settings
        )
        self._store.create(keys.roster(self._number), encode_record(roster))
        self.enter("train")
        self._emit(_run_started(plan, roster, self._store))
        self._writer.flush()  # before anything that members tell, which may be soon
        begin_s = time.monotonic()
        with Crew(self.platform, self._store, checks_input=False) as crew:
            offers = plan.member_offers
            specs = [
                self._spec(member.name, "train", offer, plan)
                for member, offer in zip(roster.members, offers, strict=True)
            ]
            crew.start("worker", specs, offers)
            wait_for_all(self._preparers, self.relay.poll)
            self._has_begun = True
            try:
                if plan.survives_losses:
                    crew.wait_for_survivors(self._meter(plan, crew), self._tell_exit)
                else:
                    crew.wait(self._meter(plan, crew))
            except MemberFailed as failure:
                self._tell_exit(failure.member, failure.exit_text)
                raise
            usd = _bill(plan, crew)
        self.relay.flush()
        wall_s = time.monotonic() - begin_s
        steps = [self._steps[number] for number in sorted(self._steps)]
        step_s = _median_step_s(steps, plan, first_step)
        manifest = read_manifest(self._store, last_step(self._store))
        ledger = manifest.ledger
        if self._has_lost_members and manifest.step < plan.num_steps and not ledger.stopped:
            raise CheckpointError(
                f"all members have ended, but the last checkpoint in {self._store.url} has {manifest.step} of "
                f"{plan.num_steps} steps; `zooid resume {self._store.url}` goes on from there"
            )
        self._emit(RunFinished(at_s=time.time(), wall_s=wall_s, step_s=step_s, usd=usd, checkpoint=self._checkpoint))
        losses = tuple(step.loss for step in steps)
        best = None if ledger.best_step is None else f"{self._store.url}/{keys.checkpoint(ledger.best_step)}"
        return RunResult(
            store=self._store.url,
            plan=plan,
            checkpoint=self._checkpoint,
            best_checkpoint=best,
            stopped=ledger.stopped,
            step_s=step_s,
            wall_s=wall_s,
            usd=usd,
            losses=losses,
        )

    def _tell_exit(self, member: str, exit_text: str) -> None:
        self._has_lost_members = True
        self._emit(MemberExited(at_s=time.time(), member=member, exit_text=exit_text))

    def _take(self, event: Event) -> None:
        match event:
            case StepCommitted():
                self._steps[event.step] = event
            case CheckpointSaved():
                self._checkpoint = event.url
            case OptimizerChanged():
                self._settings = event.settings
            case ModelTraced():
                self._trace = event.digest
        self._on_event(event)

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

    def _spec(
        self, member: str, task: Literal["prepare", "check", "train"], offer: Offer, given: Plan | FixedLayout
    ) -> WorkerSpec:
        return WorkerSpec(
            run=self._claim.run,
            member=member,
            store=self._store.url,
            job_file=self._claim.job_file,
            num_threads=num_threads(offer),
            task=task,
            roster=self._number,
            timeout_s=_timeout_s(given.predicted if isinstance(given, Plan) else None),
            layout=None if isinstance(given, Plan) else given,
            checkpoints=self._claim.checkpoints,
            trace=self._trace,
        )

    def _emit(self, event: Event) -> None:
        self._writer.write(event)


def _timeout_s(predicted: Prediction | None) -> float:
    if predicted is None:
        return _UNKNOWN_TIMEOUT_S
    return max(_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR * max(predicted.step_s, predicted.startup_s))


def read_plan(store: ObjectStore, number: int) -> Plan:
    """The plan of this roster."""
    key = keys.plan(number)
    return decode_record(bytes(store.get(key)), Plan, f"{store.url}/{key}")


def roster_for(plan: Plan, run: str, number: int, resume_step: int) -> Roster:
    """A seat for every stage of every replica, all new."""
    num_grains = math.ceil(plan.batch_size / plan.grain_size)
    return Roster(
        run=run,
        number=number,
        resume_step=resume_step,
        members=tuple(
            RosterMember(name=f"r{replica}s{stage}", stage=stage, replica=replica)
            for replica in range(plan.num_replicas)
            for stage in range(len(plan.stages))
        ),
        shares=plan.shares or even_shares(num_grains, plan.num_replicas),
    )


def _run_started(plan: Plan, roster: Roster, store: ObjectStore) -> RunStarted:
    """With what is predicted for the steps that are left."""
    whole = plan.predicted
    run_s, usd = (None, None) if whole is None else (whole.run_s, whole.run_usd)
    if whole is not None and roster.resume_step:
        run_s = whole.startup_s + (whole.run_s - whole.startup_s) * (1 - roster.resume_step / whole.num_steps)
        from zooid.predictor import bill_usd

        usd = math.fsum(bill_usd(offer, run_s) for offer in plan.member_offers)
    return RunStarted(
        at_s=time.time(),
        run=roster.run,
        store=store.url,
        layout=plan.layout,
        num_steps=plan.num_steps,
        first_step=roster.resume_step,
        batch_size=plan.batch_size,
        predicted_step_s=None if whole is None else whole.step_s,
        predicted_run_s=run_s,
        predicted_usd=usd,
        members=tuple(member.name for member in roster.members),
        prices=prices_in_words(plan.offers[0]),
        why_whole=plan.why_whole,
    )


def _bill(plan: Plan, crew: Crew) -> float:
    """What the members have cost so far, at the plan's prices."""
    from zooid.predictor import bill_usd  # numpy and the simulator come with it, while members are starting

    pairs = zip(plan.member_offers, crew.running_s(), strict=True)
    return math.fsum(bill_usd(offer, running_s) for offer, running_s in pairs)


def _median_step_s(steps: list[StepCommitted], plan: Plan, first_step: int) -> float:
    """Full steps only, without the first, which also warms up; 0 where a run stopped before any step."""
    full = [step.step_s for step in steps if step.step > first_step and step.num_samples == plan.batch_size]
    return statistics.median(full or [step.step_s for step in steps] or [0.0])
