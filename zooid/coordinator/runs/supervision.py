"""Supervision of a run, new or resumed: its members are checked, started, watched and ended."""

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Literal

from msgspec import structs

from zooid.coordinator.job_files.travelling_job import TravellingJob
from zooid.coordinator.plans.checkpoint_rules import rule_for
from zooid.coordinator.plans.known_places import in_words
from zooid.coordinator.plans.offer_names import num_threads
from zooid.coordinator.runs.accounts import median_step_s, run_started, timeout_s
from zooid.coordinator.runs.adoption import Orphan, Orphans, end_waiting, find_orphan
from zooid.coordinator.runs.cleanup import clear_earlier, clear_exchanged
from zooid.coordinator.runs.crew import Crew, wait_for_all
from zooid.coordinator.runs.first_roster import roster_for
from zooid.coordinator.runs.heard_members import HeardMembers
from zooid.coordinator.runs.lease import Lease
from zooid.coordinator.runs.left_members import find_left_members, forget_ended
from zooid.coordinator.runs.live_bill import LiveBill, carry_over
from zooid.coordinator.runs.member_changes import RunChanges
from zooid.coordinator.runs.relay import OnEvent, Relay
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.coordinator.runs.run_pace import find_pace, paced_spec
from zooid.coordinator.runs.run_progress import RunProgress, RunResult
from zooid.coordinator.runs.warm_ups import PATIENCE_S, offers_to_warm, warm_up_specs
from zooid.core.errors import (
    CheckpointError,
    InputError,
    MemberFailed,
    ObjectExists,
    ObjectNotFound,
    StoreError,
)
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import FixedLayout, Limits, Plan
from zooid.core.records import encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import (
    Event,
    MemberExited,
    MembersAdopted,
    Metered,
    PhaseStarted,
    RunFinished,
    StoreUsed,
)
from zooid.core.runs.spec import Adoption, RunClaim, WorkerSpec
from zooid.platforms import Platform
from zooid.schedule.samples import samples_of
from zooid.store import EventWriter, Fence, ObjectStore, RetryingStore, clear, sweep
from zooid.store.checkpoint_index import last_step, read_manifest, sweep_strays
from zooid.store.fences import GRACE_S
from zooid.store.planned_changes import read_plan_of
from zooid.store.rosters import read_roster
from zooid.store.stored_records import read_plan, read_worker_spec

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_HASTY_PATIENCE_S = 10.0
"""Patience with the store when a run ends with an error, for example by Ctrl-C."""
_GRACE_POLL_S = 0.1


class Run:
    """A run from its claim to its end, under the roster with the number of the claim.

    Entering writes the claim of a resumed run. Leaving always removes what members exchanged. If no member ever
    trained, it also removes all that was written for this roster. A new run's folder is then empty again. A resumed
    one is as before, except for the claim, whose number is never reused.

    A run that adopts members has a claim of its own, but their roster. Once another coordinator has taken over, this
    one deletes nothing and ends no member.
    """

    def __init__(
        self,
        store: ObjectStore,
        claim: RunClaim,
        number: int,
        platform: Platform,
        on_event: OnEvent,
        orphans: Orphans | None = None,
    ) -> None:
        """`claim` is the one under which members train; with `orphans`, it is their existing claim."""
        self.platform = platform
        self._store = RetryingStore(store)  # with its own patience, which is cut short if the run ends with an error
        self._claim = claim
        self._number = number
        """Number of this coordinator's own claim."""
        self._roster = number if orphans is None else orphans.roster.number
        """Number of the claim under which members were started."""
        self._orphans = orphans
        self._on_event = on_event
        self._has_begun = False
        self._has_left = False
        """Whether members could not be ended."""
        self._progress = RunProgress()
        self._fence = Fence(self._store, number, coordinates=True)
        self._lease = Lease(self._store, number, self._fence, lambda: self.relay.told)
        name = keys.COORDINATOR if orphans is None else f"{keys.COORDINATOR}-{number:06d}"
        self._writer = EventWriter(self._store, name, self._roster, self._fence)
        self._bill = LiveBill(self._store, self._writer, on_event, claim, self._roster)
        told: Mapping[str, int] = {} if orphans is None else orphans.told
        self.relay = Relay(self._store, self._take, self._roster, self._lease.check, told)
        self._changes: RunChanges | None = None
        """Changes of who trains, from when members train."""
        self._preparers: list[Crew] = []
        """The member that still writes the initial weights, while others may already start."""

    @property
    def meter(self) -> RunMeter:
        """The meter that bills all members of the run."""
        return self._bill.meter

    def remaining(self, limits: Limits) -> Limits:
        """Return the limits of a plan, less what the run has already taken and cost."""
        return self._bill.guard.remaining(limits)

    @property
    def job(self) -> TravellingJob:
        """The job that members train."""
        return TravellingJob.of(self._claim)

    def __enter__(self) -> "Run":
        try:
            self._lease.begin()  # before the claim, so that whoever finds the claim also finds its holder alive
            if self._number > 0:
                claim: RunClaim | Adoption = self._claim
                if self._orphans is not None:
                    claim = Adoption(run=self._claim.run, roster=self._roster, nonce=secrets.token_hex(8))
                self._store.create(keys.claim(self._number), encode_record(claim))
                self._lease.renew()
        except ObjectExists as error:
            self._lease.end()
            raise InputError(
                f"another coordinator has just taken over the run in {self._store.url}; wait for its end"
            ) from error
        except StoreError as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self._store.shorten(_HASTY_PATIENCE_S)
        if self._changes is not None:
            self._changes.close()
        self._lease.fall_silent()
        with contextlib.suppress(StoreError):  # a store that fails now costs a few objects, not the run
            self._bill.close()
            self._writer.close()
            self.relay.flush()
            self._clean_up()
        self._lease.end()
        with contextlib.suppress(StoreError):
            self._end_left()

    @property
    def is_replaced(self) -> bool:
        """Whether another coordinator has taken over the run."""
        return self._lease.is_replaced()

    def wait_for_earlier_members(self) -> None:
        """Wait until members of a killed coordinator have seen this run's claim and have ended."""
        self.enter("waiting until members that were left behind have ended")
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            self._lease.check()
            time.sleep(_GRACE_POLL_S)

    def carry_over_costs(self, last_plan: Plan) -> None:
        """Bill what the run has cost under earlier claims, whose last plan this is."""
        self._bill.begin(last_plan)
        carry_over(self.meter, self._store, self._number, self.meter.prices)

    def _clean_up(self) -> None:
        """Remove temporary objects of this run and of earlier claims, if this claim is still the newest."""
        if self._lease.is_replaced() or self._fence.is_superseded():
            return
        clear_exchanged(self._store, self._claim.run, self._roster)
        self._has_left = bool(self._store.list(keys.left_under(self._roster)))
        if self._number == 0 and not self._has_begun and not self._has_left:
            clear(self._store, "")
        else:
            clear_earlier(self._store, self._claim.run, self._roster, self._number)
            clear(self._store, keys.PROBES)
            if self._progress.has_lost_members:
                sweep_strays(self._store)
            if not self._has_begun:
                self._store.delete([keys.plan(self._number)])
                for folder in (keys.SPECS, keys.FAILURES, keys.STARTS, keys.LOGS):
                    clear(self._store, f"{folder}/{keys.label(self._number)}")
        sweep(self._store, "", min_age_s=0.0)  # all members are gone, so nobody will finish a staged upload

    def _end_left(self) -> None:
        """End members that the platform does not reach, with a claim that they see in the store."""
        if not self._has_left:
            return
        claim = structs.replace(self._claim, nonce=secrets.token_hex(8))
        with contextlib.suppress(ObjectExists):  # another coordinator has taken over, which ends them, too
            self._store.create(keys.claim(self._number + 1), encode_record(claim))
        left = [
            member for member in find_left_members(self._store, (), with_handles=False) if member.roster == self._roster
        ]
        deadline_s = time.monotonic() + GRACE_S
        while (left := forget_ended(left)) and time.monotonic() < deadline_s:
            time.sleep(_GRACE_POLL_S)
        if left:
            logger.warning(
                "members may still run: %s; `zooid clean --force %s` ends them when they can be reached",
                ", ".join(in_words(member.handle) for member in left),
                self._store.url,
            )

    def enter(self, phase: str) -> None:
        """Report that the next phase begins."""
        self._emit(PhaseStarted(at_s=time.time(), phase=phase))

    @contextlib.contextmanager
    def preparing(self, given: Plan | FixedLayout) -> Iterator[Plan]:
        """Start a member that checks a new run's job and writes checkpoint 0, and wait until it has traced the model.

        If only a layout is given, the member also makes the plan. It still writes weights inside the context, while
        `train` may already start the other members.
        """
        self.enter("prepare")
        if isinstance(given, Plan):
            self._store.put(keys.plan(self._number), encode_record(given))
        offer = _largest(given.member_offers) if isinstance(given, Plan) else given.offer
        during = "while the initial weights were being written"
        with Crew(self.platform, self._store, checks_input=True, during=during, meter=self.meter) as crew:
            crew.start("worker", [self._spec("preparer", "prepare", offer, given)], [offer])
            with self._warming(given):
                while not (crew.is_done() or self._progress.trace):
                    self.relay.poll()
                    time.sleep(_POLL_S)
                self.relay.flush()  # a member that is already done has reported its trace
            self._preparers = [crew]
            yield given if isinstance(given, Plan) else read_plan(self._store, self._number)

    def check(self, plan: Plan) -> None:
        """Let one member compare the job with the last checkpoint of a resumed run."""
        self._store.put(keys.plan(self._number), encode_record(plan))
        self.enter("checking the job against the checkpoint")
        offer = _largest(plan.member_offers)
        during = "while the job was being compared with the checkpoint"
        crew = Crew(self.platform, self._store, checks_input=True, during=during, meter=self.meter)
        with self._warming(plan):
            crew.run("worker", [self._spec("checker", "check", offer, plan)], [offer], self.relay)

    @contextlib.contextmanager
    def _warming(self, given: Plan | FixedLayout) -> Iterator[None]:
        """Let processes that members will use import what they need, during the context and a while longer."""
        offers = offers_to_warm(given, self.platform)
        if not offers:
            yield
            return
        with Crew(self.platform, self._store, checks_input=False, meter=self.meter) as crew:
            crew.start("worker", warm_up_specs(offers, self._claim.run, self._store.url, self._number), offers)
            deadline_s = time.monotonic() + PATIENCE_S
            yield
            while not crew.have_ended() and time.monotonic() < deadline_s:
                self.relay.poll()
                time.sleep(_POLL_S)

    def train(self, plan: Plan, first_step: int = 0, fleets: Sequence[Plan] = ()) -> RunResult:
        """Start a member for every seat, and wait for the end of the last step.

        `fleets` are other plans, to one of which the run switches if the limits would not hold.
        """
        roster = structs.replace(
            roster_for(plan, self._claim.run, self._number, first_step),
            optimizer_settings=self._progress.optimizer_settings,
        )
        self._bill.begin(plan, first_step)
        self._store.create(keys.roster(self._number), encode_record(roster))
        self.enter("train")
        self._emit(run_started(plan, roster, self._store, self._claim.checkpoints))
        self._writer.flush()  # before the first event of a member, which may come soon
        begin_s = time.monotonic()
        with self._crew(self._heard(plan)) as crew:
            offers = plan.member_offers
            specs = [
                structs.replace(
                    self._spec(seat.name, "train", offer, plan, roster.replica_of(seat.name) or 0),
                    predicted_bytes=plan.stages[seat.stage].memory_bytes,
                )
                for seat, offer in zip(roster.seats, offers, strict=True)
            ]
            self._fence.check()
            crew.start("worker", specs, offers)
            self._bill.guard.allow()
            self._begin_changes(plan, crew, fleets)  # members may train and want changes while a preparer still ends
            wait_for_all(self._preparers, self.relay.poll)
            self._has_begun = True
            return self._watch(plan, crew, first_step, begin_s)

    def _begin_changes(self, plan: Plan, crew: Crew, fleets: Sequence[Plan] = (), plan_name: str = "") -> RunChanges:
        """Let the run change who trains from now on. Members follow this plan, which has this name in the store."""
        self._changes = RunChanges(
            store=self._store,
            claim=self._claim,
            number=self._roster,
            platform=self.platform,
            crew=crew,
            plan=plan,
            plan_name=plan_name,
            fleets=fleets,
            bill=self._bill,
            progress=self._progress,
            spec=self._spec,
            tell=self._emit,
            begun_s=time.time(),
            has_earlier_claims=self._number > 0,
        )
        return self._changes

    def adopt(self, plan: Plan) -> RunResult:
        """Take over members that already train, and wait for the end of the last step."""
        assert self._orphans is not None
        self._has_begun = True
        begin_s = time.monotonic()
        orphans, roster = self._orphans, self._orphans.roster
        self._bill.begin(plan, orphans.step)
        adopted = [member.name for member in orphans.members]
        carry_over(self.meter, self._store, self._number, self.meter.prices, adopted)
        self._progress.has_lost_members = roster.change > 0 or len(orphans.members) < len(roster.seats)
        resumed = structs.replace(roster, resume_step=orphans.step)
        self._emit(run_started(plan, resumed, self._store, self._claim.checkpoints))
        names = tuple(member.name for member in orphans.members)
        self._emit(MembersAdopted(at_s=time.time(), members=names, step=orphans.step))
        self._writer.flush()
        end_waiting(self._store, self.platform, self._roster)
        platform = self._heard(plan)
        with self._crew(platform) as crew:
            for member in orphans.members:
                self._adopt_member(member, plan, crew, platform)
            if plan.survives_losses:
                with contextlib.suppress(ObjectNotFound):  # without it, new members trace the model themselves
                    self._progress.trace = read_worker_spec(self._store, names[0], self._roster).trace
                followed = read_plan_of(self._store, self._roster, roster.plan)
                changes = self._begin_changes(followed, crew, plan_name=roster.plan)
                changes.replace_lost()  # while no coordinator lived, nobody did
            return self._watch(plan, crew, orphans.step, begin_s, lambda: self._adopt_joined(plan, crew, platform))

    def _adopt_joined(self, plan: Plan, crew: Crew, platform: HeardMembers) -> None:
        """Adopt members that have joined since, with a change that the dead coordinator had planned."""
        for name in (self._progress.seated or frozenset()).difference(crew.members):
            if (orphan := find_orphan(self._store, self.platform, name, self._roster)) is not None:
                self._adopt_member(orphan, plan, crew, platform)

    def _adopt_member(self, orphan: Orphan, plan: Plan, crew: Crew, platform: HeardMembers) -> None:
        if not orphan.is_seen:
            platform.unseen.add(orphan.name)
        handle = orphan.handle
        crew.adopt(orphan.name, handle.run, self._roster, self._offer_of(orphan.name, plan), handle.launched_at_s)

    def _offer_of(self, member: str, plan: Plan) -> Offer:
        """The offer of a member that another coordinator has started, in the claim's first roster or to join later."""
        first = read_roster(self._store, self._roster)
        offers = dict(zip((seat.name for seat in first.seats), plan.member_offers, strict=True))
        if member in offers:
            return offers[member]
        spec = read_worker_spec(self._store, member, self._roster)
        assert spec.joins_stage is not None, "who is not in the first roster has joined"
        followed = read_plan_of(self._store, self._roster, spec.plan)
        by_name = {offer.name: offer for offer in followed.offers}
        return by_name.get(spec.offer, followed.member_offers[spec.joins_stage])

    def _heard(self, plan: Plan) -> HeardMembers:
        """Return the platform, which asks the store about members that it cannot list or reach."""
        return HeardMembers(
            self.platform,
            self._store,
            self._roster,
            self._progress.last_heard_s,
            self._has_trained,
            timeout_s(plan.predicted),
            self._progress.last_report_s,
        )

    def _crew(self, platform: Platform) -> Crew:
        return Crew(
            platform,
            self._store,
            checks_input=False,
            is_replaced=self._lease.is_replaced,
            meter=self.meter,
            trains=True,
        )

    def _has_trained(self, member: str) -> bool:
        if member not in self._progress.trained:
            self.relay.flush()
        return member in self._progress.trained

    def _watch(
        self,
        plan: Plan,
        crew: Crew,
        first_step: int,
        begin_s: float,
        adopt_joined: Callable[[], None] = lambda: None,
    ) -> RunResult:
        def poll() -> None:
            self._poll()
            adopt_joined()

        def look_again() -> None:
            self.relay.flush()
            adopt_joined()

        try:
            if plan.survives_losses:
                is_left_out, is_waiting = self._progress.is_left_out, self._progress.is_waiting
                report_exit = partial(self._report_exit, crew)
                crew.wait_for_survivors(poll, look_again, report_exit, is_left_out, is_waiting)
            else:
                wait_for_all([crew], self._poll)
        except MemberFailed as failure:
            self._fence.check()  # members that another coordinator has ended have not failed
            self._report_exit(crew, failure.member, failure.exit_text)
            raise
        self._fence.check()
        wall_s = time.monotonic() - begin_s
        crew.end_waiting()  # the bill has all of their time, too
        self.relay.flush()
        metered = self._bill.read()
        progress = self._progress
        steps = [progress.steps[number] for number in sorted(progress.steps)]
        step_s = median_step_s(steps, plan, first_step)
        manifest = read_manifest(self._store, last_step(self._store))
        ledger = manifest.ledger
        num_steps = samples_of(manifest).num_steps
        if progress.has_lost_members and manifest.step < num_steps and not ledger.stopped:
            raise CheckpointError(
                f"all members have ended, but the last checkpoint in {self._store.url} has {manifest.step} of "
                f"{num_steps} steps; `zooid resume {self._store.url}` continues from there"
            )
        checkpoint = progress.checkpoint or f"{self._store.url}/{keys.checkpoint(manifest.step)}"
        self._emit(
            RunFinished(
                at_s=time.time(),
                wall_s=wall_s,
                step_s=step_s,
                usd=metered.usd,
                terms=metered.terms,
                checkpoint=checkpoint,
            )
        )
        best = None if ledger.best_step is None else f"{self._store.url}/{keys.checkpoint(ledger.best_step)}"
        return RunResult(
            store=self._store.url,
            plan=plan,
            checkpoint=checkpoint,
            best_checkpoint=best,
            stopped=ledger.stopped,
            step_s=step_s,
            wall_s=wall_s,
            usd=metered.usd,
            cost_terms=metered.terms,
            losses=tuple(step.loss for step in steps),
        )

    def _report_exit(self, crew: Crew, member: str, exit_text: str) -> None:
        if member in self._progress.departed:
            return
        self._progress.has_lost_members = True
        if member in self._progress.reported_lost:  # the last member was lost as well, which ends the run
            return
        self._progress.reported_lost.add(member)
        if member not in self._progress.started and not self._progress.is_waiting(member):
            self._store.put(keys.lost_at_start(self._roster), member.encode())  # perhaps others wait for it
        offer = crew.offer_of(member).name
        exited = MemberExited(at_s=time.time(), member=member, exit_text=exit_text, offer=offer)
        if self._changes is not None:
            self._changes.note_exit(exited)
        self._emit(exited)

    def _take(self, event: Event) -> None:
        if isinstance(event, Metered):  # the bill is shown when it is read, not when it comes back from the store
            return
        self._bill.take(event)
        self._progress.take(event)
        if self._changes is not None:
            self._changes.take(event)
        if not isinstance(event, StoreUsed):  # the bill shows what it has cost
            self._on_event(event)

    def _poll(self) -> None:
        self._bill.poll()
        self.relay.poll()
        if self._changes is not None:
            self._changes.poll()

    def _spec(
        self,
        member: str,
        task: Literal["prepare", "check", "plan", "train"],
        offer: Offer,
        given: Plan | FixedLayout,
        replica: int = 0,
    ) -> WorkerSpec:
        job_file, code = self.job.seen_from(offer)
        spec = WorkerSpec(
            run=self._claim.run,
            member=member,
            store=self._store.url,
            job_file=job_file,
            code=code,
            num_threads=num_threads(offer),
            task=task,
            roster=self._number,
            timeout_s=timeout_s(given.predicted if isinstance(given, Plan) else None),
            layout=None if isinstance(given, Plan) else given,
            checkpoints=rule_for(self._claim.checkpoints, given)
            if isinstance(given, Plan)
            else self._claim.checkpoints,
            trace=self._progress.trace,
            has_limits=self._claim.has_limits,
            offer=offer.name,
        )
        if task != "train" or self._pace is None:
            return spec
        assert isinstance(given, Plan), "members train by a plan"
        return paced_spec(spec, self._pace, given, offer, replica)

    @cached_property
    def _pace(self) -> RehearsalPace | None:
        """How long members compute, if the run is a rehearsal."""
        return find_pace(self._store)

    def _emit(self, event: Event) -> None:
        self._writer.write(event)


def _largest(offers: Sequence[Offer]) -> Offer:
    """Return the offer with the most memory, for a member that holds the whole model."""
    return max(offers, key=lambda offer: offer.memory_bytes)
