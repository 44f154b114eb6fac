"""What beginning a run and going on with one have in common: members are checked, started, watched and ended."""

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from zooid.coordinator.plans.offer_names import num_threads
from zooid.coordinator.runs.accounts import bill, median_step_s, run_started, timeout_s
from zooid.coordinator.runs.adoption import AdoptedMembers, Orphans
from zooid.coordinator.runs.crew import Crew, wait_for_all
from zooid.coordinator.runs.lease import Lease
from zooid.coordinator.runs.leftovers import clear_earlier, clear_exchanged
from zooid.coordinator.runs.relay import OnEvent, Relay
from zooid.core.errors import CheckpointError, InputError, MemberFailed, ObjectExists, StoreError
from zooid.core.plans.plan import FixedLayout, Plan
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import (
    CheckpointSaved,
    Event,
    MemberExited,
    MembersAdopted,
    MemberTrained,
    Metered,
    ModelTraced,
    OptimizerChanged,
    PhaseStarted,
    RosterChanged,
    RunFinished,
    StepCommitted,
)
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat
from zooid.core.runs.spec import Adoption, RunClaim, WorkerSpec
from zooid.platforms import Platform
from zooid.schedule.samples import even_shares
from zooid.store import EventWriter, Fence, ObjectStore, RetryingStore, clear, sweep
from zooid.store.checkpoint_index import last_step, read_manifest, sweep_strays
from zooid.store.fences import GRACE_S
from zooid.store.rosters import read_roster

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
    """The loss of every step, in order. After a resume, they begin with the step that the run went on with. After an
    adoption, they begin with the first step that nobody had been told of."""


class Run:
    """A run from its claim to its end, under the roster whose number the claim has.

    Entering writes the claim of a run that goes on. Leaving removes what members exchanged, however it is left. Where
    no member ever trained, all that was written for this roster goes too: a new run's folder is then empty again, and
    one that was to be resumed is as it was, but for the claim, whose number is never used again.

    A run that adopts members has a claim of its own, but their roster. Once another coordinator has gone on, this one
    deletes nothing and ends nobody.
    """

    def __init__(
        self,
        store: ObjectStore,
        claim: RunClaim,
        number: int,
        platform: Platform[Any],
        on_event: OnEvent,
        orphans: Orphans | None = None,
    ) -> None:
        """`claim` is the one under which members train. With `orphans` it is theirs, which was written before."""
        self.platform = platform
        self._store = RetryingStore(store)  # its own patience, which is short when the run is left with an error
        self._claim = claim
        self._number = number
        """Number of the own claim."""
        self._roster = number if orphans is None else orphans.roster.number
        """Number of the claim under which members were started."""
        self._orphans = orphans
        self._on_event = on_event
        self._has_begun = False
        self._has_lost_members = False
        self._fence = Fence(self._store, number, coordinates=True)
        self._lease = Lease(self._store, number, self._fence, lambda: self.relay.told)
        name = "coordinator" if orphans is None else f"coordinator-{number:06d}"
        self._writer = EventWriter(self._store, name, self._roster, self._fence)
        told: Mapping[str, int] = {} if orphans is None else orphans.told
        self.relay = Relay(self._store, self._take, self._roster, self._lease.check, told)
        self._steps: dict[int, StepCommitted] = {}
        """The steps that were told, by number."""
        self._checkpoint = ""
        self._settings: dict[str, tuple[str, ...]] = {}
        self._trace = ""
        self._trained: set[str] = set()
        """Members that have told that they have done all their steps."""
        self._heard_s = time.monotonic()
        """When an event was last passed on."""
        self._seated: frozenset[str] | None = None
        """Members that the present roster names; None before members have replaced the first one."""
        self._preparers: list[Crew] = []
        """The member that still writes the initial weights, while others may already start."""

    @property
    def job_file(self) -> Path:
        return Path(self._claim.job_file)

    def __enter__(self) -> "Run":
        try:
            self._lease.begin()  # before the claim: whoever finds the claim also finds its holder alive
            if self._number > 0:
                self._store.create(keys.claim(self._number), encode_record(self._own_claim()))
                self._lease.renew()
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

    def _own_claim(self) -> RunClaim | Adoption:
        if self._orphans is None:
            return self._claim
        return Adoption(run=self._claim.run, roster=self._roster, nonce=secrets.token_hex(8))

    @property
    def is_replaced(self) -> bool:
        """Whether another coordinator has gone on with the run."""
        return self._lease.is_replaced()

    def wait_for_earlier_members(self) -> None:
        """Wait until members that a killed coordinator has left behind have seen this run's claim, and have ended."""
        self.enter("waiting until members that were left behind have ended")
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            self._lease.check()
            time.sleep(_GRACE_LOOK_S)

    def _tidy(self) -> None:
        """Where the own claim is still the newest, remove what is this run's own, and what earlier ones have left."""
        if self._lease.is_replaced() or self._fence.is_superseded():
            return
        clear_exchanged(self._store, self._claim.run, self._roster)
        if self._number == 0 and not self._has_begun:
            clear(self._store, "")
        else:
            clear_earlier(self._store, self._claim.run, self._roster, self._number)
            clear(self._store, keys.PROBES)
            if self._has_lost_members:
                sweep_strays(self._store)
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
        self._emit(run_started(plan, roster, self._store))
        self._writer.flush()  # before anything that members tell, which may be soon
        begin_s = time.monotonic()
        with self._crew(self.platform) as crew:
            offers = plan.member_offers
            specs = [
                self._spec(member.name, "train", offer, plan)
                for member, offer in zip(roster.seats, offers, strict=True)
            ]
            self._fence.check()
            crew.start("worker", specs, offers)
            crew.record_handles()
            wait_for_all(self._preparers, self.relay.poll)
            self._has_begun = True
            return self._attend(plan, crew, first_step, begin_s)

    def adopt(self, plan: Plan) -> RunResult:
        """Take over members that train already, and wait for the end of the last step."""
        assert self._orphans is not None
        self._has_begun = True
        begin_s = time.monotonic()
        orphans, roster = self._orphans, self._orphans.roster
        self._has_lost_members = roster.change > 0 or len(orphans.members) < len(roster.seats)
        self._emit(run_started(plan, structs.replace(roster, resume_step=orphans.step), self._store))
        names = tuple(member.name for member in orphans.members)
        self._emit(MembersAdopted(at_s=time.time(), members=names, step=orphans.step))
        self._writer.flush()
        first = read_roster(self._store, self._roster)
        offers = dict(zip((seat.name for seat in first.seats), plan.member_offers, strict=True))
        platform = AdoptedMembers(
            self.platform, self._last_sign_of_life_s, self._has_trained, timeout_s(plan.predicted)
        )
        with self._crew(platform) as crew:
            for member in orphans.members:
                crew.adopt(member.name, self._roster, offers[member.name], member, member.started_at_s)
            return self._attend(plan, crew, orphans.step, begin_s)

    def _crew(self, platform: Platform[Any]) -> Crew:
        return Crew(platform, self._store, checks_input=False, is_replaced=self._lease.is_replaced)

    def _last_sign_of_life_s(self, member: str) -> float:
        """When a member was last heard of. Members compute in step: what one tells shows that all of them live."""
        return -math.inf if self._is_left_out(member) else self._heard_s

    def _is_left_out(self, member: str) -> bool:
        """True if the others go on without this member."""
        return self._seated is not None and member not in self._seated

    def _has_trained(self, member: str) -> bool:
        if member not in self._trained:
            self.relay.flush()
        return member in self._trained

    def _attend(self, plan: Plan, crew: Crew, first_step: int, begin_s: float) -> RunResult:
        """Wait until the members have ended, and say how the run did."""
        try:
            if plan.survives_losses:
                crew.wait_for_survivors(self._meter(crew), self._tell_exit, self._is_left_out)
            else:
                crew.wait(self._meter(crew))
        except MemberFailed as failure:
            self._fence.check()  # members that another coordinator has ended have not failed
            self._tell_exit(failure.member, failure.exit_text)
            raise
        self._fence.check()
        usd = bill(crew)
        self.relay.flush()
        wall_s = time.monotonic() - begin_s
        steps = [self._steps[number] for number in sorted(self._steps)]
        step_s = median_step_s(steps, plan, first_step)
        manifest = read_manifest(self._store, last_step(self._store))
        ledger = manifest.ledger
        if self._has_lost_members and manifest.step < plan.num_steps and not ledger.stopped:
            raise CheckpointError(
                f"all members have ended, but the last checkpoint in {self._store.url} has {manifest.step} of "
                f"{plan.num_steps} steps; `zooid resume {self._store.url}` goes on from there"
            )
        checkpoint = self._checkpoint or f"{self._store.url}/{keys.checkpoint(manifest.step)}"
        self._emit(RunFinished(at_s=time.time(), wall_s=wall_s, step_s=step_s, usd=usd, checkpoint=checkpoint))
        losses = tuple(step.loss for step in steps)
        best = None if ledger.best_step is None else f"{self._store.url}/{keys.checkpoint(ledger.best_step)}"
        return RunResult(
            store=self._store.url,
            plan=plan,
            checkpoint=checkpoint,
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
        self._heard_s = time.monotonic()
        match event:
            case MemberTrained():
                self._trained.add(event.member)
            case StepCommitted():
                self._steps[event.step] = event
            case CheckpointSaved():
                self._checkpoint = event.url
            case OptimizerChanged():
                self._settings = event.settings
            case RosterChanged():
                self._seated = frozenset(event.members)
                self._has_lost_members = True
            case ModelTraced():
                self._trace = event.digest
        self._on_event(event)

    def _meter(self, crew: Crew) -> Callable[[], None]:
        """Relays events, and tells now and then what the members have cost; that is not worth an object each time."""
        last_s = 0.0

        def poll() -> None:
            nonlocal last_s
            if time.monotonic() - last_s > _METER_INTERVAL_S:
                last_s = time.monotonic()
                self._on_event(Metered(at_s=time.time(), usd=bill(crew)))
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
            timeout_s=timeout_s(given.predicted if isinstance(given, Plan) else None),
            layout=None if isinstance(given, Plan) else given,
            checkpoints=self._claim.checkpoints,
            trace=self._trace,
        )

    def _emit(self, event: Event) -> None:
        self._writer.write(event)


def read_plan(store: ObjectStore, number: int) -> Plan:
    """The plan of this roster."""
    key = keys.plan(number)
    return decode_record(bytes(store.get(key)), Plan, f"{store.url}/{key}")


def roster_for(plan: Plan, run: str, number: int, resume_step: int) -> Roster:
    """A seat for every stage of every replica, and for every copy, all new."""
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
        copies=tuple(RosterSeat(name=f"c0s{stage}", stage=stage) for stage in range(plan.num_copies)),
    )
