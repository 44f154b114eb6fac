"""A member of a run: one process, under one roster after the other."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product

import torch

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, ObjectExists, PeerLost
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, Division
from zooid.core.runs.events import BatchChanged, Evaluated, MemberStarted, PaceMissed, RosterChanged, StepCommitted
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Answer, Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import Stage, build_stage
from zooid.schedule.buckets import reduces_early
from zooid.schedule.samples import split_grains
from zooid.schedule.succession import uncomputed_grains_of
from zooid.store import EventWriter, ObjectStore
from zooid.store.rosters import find_roster, read_roster
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.gradients.bucket_gradients import ReplicaReduction
from zooid.worker.gradients.tied_gradients import TiedParameters
from zooid.worker.member.batch_changes import BatchChanges
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.change_records import ChangeRecords
from zooid.worker.member.change_watch import ChangeWatch
from zooid.worker.member.evaluation import Evaluator
from zooid.worker.member.hospitality import Hospitality, receive_as_guest, stages_of
from zooid.worker.member.invitation import NotInvited
from zooid.worker.member.role import Role, learn_role, manifest_of
from zooid.worker.member.seat import Seat
from zooid.worker.member.stop_listener import StopListener
from zooid.worker.member.survey import Survey
from zooid.worker.member.training_loop import Trainer
from zooid.worker.member.untold_events import untold_events
from zooid.worker.member.warm_up import warm_up
from zooid.worker.peers import Peers
from zooid.worker.samples.sample_supply import SampleSupply, open_supply
from zooid.worker.state.stage_state import (
    Loaded,
    Received,
    StageState,
    load_stage,
    load_stage_state,
    received_stage_state,
)
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.pacing import PacedStageRunner, Pacer
from zooid.worker.step.stage_runner import StageRunner
from zooid.worker.step.step_meter import StepMeter
from zooid.worker.step.step_protocols import StepRunner
from zooid.worker.step.step_schedules import StepSchedules
from zooid.worker.step.transactions import Assignment, Transactions

logger = logging.getLogger(__name__)

_MAX_RECENT = 10_000
_LOOK_S = 0.02
_NICENESS = 10
"""How far a member that leaves steps back behind others on the same machine."""
_CAUSED_BY_LOST_MEMBER = ("PeerLost", "CommTimeout")
"""Errors with which a peer gives up because another member is lost, not because it has failed itself."""


class Member:
    """One process, under one roster after the other. Its role and its trained state outlive rosters."""

    trainer_kind = Trainer

    @staticmethod
    def learn_role(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> tuple[Role, Roster]:
        """Learn what stays the same under all rosters, and the roster under which the member begins."""
        return learn_role(spec, store, abort)

    @staticmethod
    def load_stage(spec: WorkerSpec, store: ObjectStore, role: Role) -> Loaded:
        """Load the stage of a process that joins, without its present state."""
        assert spec.joins_stage is not None
        return load_stage(store, role, role.manifest, spec.joins_stage)

    def __init__(
        self,
        spec: WorkerSpec,
        store: ObjectStore,
        abort: Abort,
        events: EventWriter,
        role: Role,
        stop: StopListener,
        roster: Roster,
        peers: Peers | None,
        loaded: Loaded | None = None,
    ) -> None:
        """`roster` is the first one of this member.

        A process that joins has only `loaded` the stage, without its present state, and has no peers. It gets them and
        its first roster with `join`.
        """
        self.role = role
        self.first_roster = roster
        self.has_begun = False
        """Whether all members of a roster, this one among them, were there."""
        self.events = events
        self._records = ChangeRecords(store, spec.roster)
        self._schedules = StepSchedules(role.shape)
        self._spec = spec
        self._store = store
        self._abort = abort
        self._stop = stop
        self._roster = roster
        self._roster_before: Roster | None = None
        """The roster that the present one has replaced."""
        self._changed_at_s = 0.0
        """When this member noticed the lost member that led to the present roster, or ended the one before."""
        self._has_started = False
        self._keeper: CheckpointKeeper | None = None
        self._trainer: Trainer | None = None
        self._confirming: Future[None] | None = None
        """The write of the present roster, if this member plans it as its first member."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="zooid-roster")
        self._recent: deque[StepCommitted | Evaluated | BatchChanged] = deque(maxlen=_MAX_RECENT)
        """Events that the first member writes, in case it is lost before it can."""
        self._pacer = Pacer(spec.pace, abort, self._tell_late) if spec.pace else None
        self._readers = ExitStack()
        self._connected = peers
        self._loaded = loaded
        self._evaluated: Stage | None = None
        """The stage in evaluation mode, with the tensors that are trained."""
        self._state: StageState
        self._samples = replace(role.samples)
        """What the supply reads. A guest opens it before it knows the batch sizes so far."""
        if loaded is None:
            self._state = self._load_state(role.manifest, roster.stages[spec.member])
            self._samples = self._state.samples
        self._supply = self._open_supply(self._state.stage if loaded is None else loaded[0])

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._connected is not None:
            self._connected.close(is_clean=kind is None or issubclass(kind, NotInvited))
        self._readers.close()

    @property
    def _peers(self) -> Peers:
        assert self._connected is not None, "a process that joins gets its peers with its first roster"
        return self._connected

    def warm_up(self) -> None:
        """Do what is slow only once, before this process says that it is ready to join."""
        assert self._loaded is not None, "only a process that joins has time for it"
        warm_up(self.role, self._loaded[0])

    def get_ready(self, roster: Roster, change: PlannedChange) -> None:
        """Do ahead what the rosters of this change need, so that none of them begins with it."""
        spans = self._records.read_ahead(roster, change)
        for stage, guest_stage in product(range(len(spans.members)), range(len(spans.guests))):
            if spans.have_common(stage, guest_stage):
                self.role.layered.state_of(*spans.overlap(stage, guest_stage))  # which then knows them
        if self._spec.member in {member.name for member in change.members}:
            num_grains = self._samples.num_grains(min(roster.resume_step, self._samples.num_steps - 1))
            self._schedules.of(split_grains(num_grains, change.shares))

    def join(self, hosts: Roster, peers: Peers) -> None:
        """Take part in a run as a guest of this roster."""
        self._connected = peers
        self.first_roster = self._roster = hosts
        self.events.turn_to(hosts.number, hosts.change, self._spec.member)

    @contextmanager
    def under(self, roster: Roster) -> Iterator[tuple[Trainer, CheckpointKeeper]]:
        """Everything needed to run steps under this roster, from when all its members have arrived."""
        role = self.role
        self._keeper = None
        with ExitStack() as stack:
            try:
                yield self._begin(roster, stack)
            except (PeerLost, CommTimeout):
                if role.plan.survives_losses:
                    self._peers.end(is_clean=False)
                raise
            except BaseException as error:
                # peers hear why, and do not take this member for lost
                self._abort.set(f"{type(error).__name__}: {error}")
                raise
            self._peers.end(is_clean=True)

    def _begin(self, roster: Roster, stack: ExitStack) -> tuple[Trainer, CheckpointKeeper]:
        """Take the seat that this roster gives the member."""
        role, spans = self.role, self._records.spans(roster)
        stages = stages_of(roster)
        groups = self._peers.groups(
            roster, list(role.ties), lambda stage, guest: spans.have_common(stage, stages[guest])
        )
        device_of_sums = role.device if role.plan.transport == "nccl" else torch.device("cpu")
        seat = Seat(roster, roster.rank_of(self._spec.member), device_of_sums, groups, self._confirm)
        if seat.is_guest:
            assert self._loaded is not None, "only a process that joins is a guest"
            received = receive_as_guest(seat, self._loaded)
            self._state = self._received_state(self._loaded, received)
        guests = Hospitality(seat, role.layered, spans, self._state)
        if roster.guests and not seat.is_guest:
            guests.welcome()
        changes = ChangeWatch(
            self._records, self._peers, roster, self.get_ready, is_first=seat.rank == 0, abort=self._abort
        )
        stack.callback(changes.close)
        keeper = self._keeper = self._new_keeper(seat)
        trainer = self._trainer = self._new_trainer(seat, keeper, changes, guests)
        self._tell_start(seat)
        if not roster.is_planned:
            seat.barrier()  # nobody's clock starts before all are here
        self.has_begun = True
        return trainer, keeper

    def _confirm(self) -> None:
        """Wait until the present roster is in the store, if this member writes it."""
        confirming, self._confirming = self._confirming, None
        if confirming is not None:
            confirming.result()

    def _new_trainer(self, seat: Seat, keeper: CheckpointKeeper, changes: ChangeWatch, guests: Hospitality) -> Trainer:
        role, state = self.role, self._state
        reduction = ReplicaReduction(
            seat.groups.stage,
            seat.replica or 0,
            role.plan.is_direct,
            reduces_early(seat.stage) and not self._spec.pace,  # a paced stage begins reduces at their planned times
            keeps_own=role.plan.survives_losses,
            num_grains=state.samples.max_grains,
            is_reproducible=role.plan.reproducible,
        )
        ties = {
            number: TiedParameters(names, seat.groups.ties[number], counts_here=seat.stage == stages[0])
            for number, (stages, names) in enumerate(role.ties.items())
            if number in seat.groups.ties
        }
        state.training.regroup(reduction, ties)
        is_first, tensors = seat.rank == 0, state.model_tensors
        self._stop.take_seat(is_first=is_first, checkpoint_s=lambda: keeper.checkpoint_s)
        callbacks = Callbacks(role.job, self.events.write, tensors, is_first, self._recent, state.log, self._stop)
        batches = BatchChanges(role.job, role.plan, state, seat, callbacks)
        assignment = Assignment(role.job, state.samples, self._schedules, seat, role.device, batches)
        runner = self._new_runner(seat)
        meter = StepMeter(self._store, seat, keeper.pauses_s)
        transactions = Transactions(assignment, runner, state, keeper, callbacks, changes, guests, meter, self._abort)
        return self.trainer_kind(assignment, transactions, state, keeper, callbacks, self._new_evaluation(seat))

    def _new_keeper(self, seat: Seat) -> CheckpointKeeper:
        rule, division = self._spec.checkpoints, self._divide(seat.roster)
        return CheckpointKeeper(
            self._store,
            rule,
            division,
            self._state,
            seat,
            self.events,
            self._abort,
            measures_first=self._spec.has_limits,
        )

    def _divide(self, roster: Roster) -> Division:
        """How the members of this roster divide the writing of checkpoints."""
        role, num_replicas = self.role, roster.num_replicas
        return contents.division_of(role.layered, role.plan, roster.number, roster.change, num_replicas=num_replicas)

    def _load_state(self, manifest: CheckpointManifest, stage: int) -> StageState:
        return load_stage_state(self._store, self.role, manifest, stage)

    def _received_state(self, loaded: Loaded, received: Received) -> StageState:
        """The state of a guest, after the members have sent it."""
        return received_stage_state(self.role, self.role.manifest, loaded, self._samples, received)

    def _new_runner(self, seat: Seat) -> StepRunner:
        role, state = self.role, self._state
        assert isinstance(state.training, TrainingState)
        parts = (role.objective, self._supply.train, state.stage, state.training, seat, role.device)
        return StageRunner(*parts) if self._pacer is None else PacedStageRunner(*parts, self._pacer)

    def _new_evaluation(self, seat: Seat) -> Callable[[int, int], Evaluated] | None:
        """(epoch, steps so far) -> the result of an evaluation with the parameters and buffers that are trained."""
        role, stage, supply = self.role, self._state.stage, self._supply
        if supply.evaluation_sizes is None:
            return None
        if self._evaluated is None:
            trained = {**dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
            tensors = self._state.untrained | trained
            first, end = stage.first_layer, stage.end_layer
            self._evaluated = build_stage(role.layered, first, end, tensors, role.device, "eval")
        evaluated, sizes = self._evaluated, supply.evaluation_sizes
        evaluator = Evaluator(role.objective, evaluated, seat, supply.evaluate, sizes, role.device)
        return lambda epoch, step: evaluator.run(role.shape, self._abort, epoch, step)

    def _open_supply(self, stage: Stage) -> SampleSupply:
        role = self.role
        reads = stage.first_layer == 0 or stage.is_last
        pin = role.device.type == "cuda"
        supply = open_supply(role.job, role.data, self._samples, self._own_grains, reads=reads, pin=pin)
        return self._readers.enter_context(supply)

    def _own_grains(self, step: int | None, num_grains: int) -> tuple[int, ...]:
        """The grains of this member's replica in a step of the present roster; the step is None in evaluation."""
        roster = self._roster
        replica = roster.replica_of(self._spec.member)
        if replica is None:
            return ()
        if step is None:
            return split_grains(num_grains, roster.shares)[replica]
        return uncomputed_grains_of(roster, step, num_grains)[replica]

    def next_roster(self, roster: Roster, error: PeerLost | CommTimeout) -> Roster | None:
        """The roster that the survivors of a lost member agree on; None if it has no seat for this member.

        Raises the error itself if the run cannot go on.
        """
        is_failure = isinstance(error, PeerLost) and error.cause not in ("", *_CAUSED_BY_LOST_MEMBER)
        if not self.role.plan.survives_losses or self._abort.is_set or is_failure:
            raise error
        self._changed_at_s = time.perf_counter()
        logger.warning("%s; the members that are left go on without it", error)
        self._peers.announce_survey()
        if self._spec.member not in roster.stages:
            return None  # its hosts have to agree first, and this guest may not even have its state yet
        # The next first member looks up what this member has told, and tells the rest.
        telling = self._writer.submit(self.events.flush)
        replaced, attempted = self._confirmed(roster), roster
        while True:
            if self._spec.member not in replaced.stages:
                return None  # its hosts have to agree first; it may join again
            next_roster = self._survey(replaced, knows_attempt=replaced.change == attempted.change)
            if next_roster != attempted and replaced.change < attempted.change:
                self._state.progress.forget_attempt(self._state.training)
                self._roster = attempted = replaced
            if not next_roster.is_planned:
                break
            # It was planned before the member was lost, and others have gone on under it. They find that out, too.
            if next_roster != attempted:
                self._catch_up(next_roster)
                attempted = next_roster
            replaced = next_roster
        telling.result()
        self.events.turn_to(next_roster.number, next_roster.change, self._spec.member)
        if self._spec.member not in next_roster.stages:
            return None
        self._take_up(next_roster)
        return next_roster

    def _survey(self, roster: Roster, *, knows_attempt: bool) -> Roster:
        """Replace a roster together with its other survivors.

        Without `knows_attempt`, they do not hear what this member did under a planned roster that followed this one.
        """
        survey = Survey(
            store=self._store,
            roster=roster,
            timeout_s=self._spec.timeout_s,
            num_grains=self._state.samples.num_grains,
            lost=lambda: self._peers.lost,
            abort=self._abort,
        )
        return survey.replace(self._answer(roster, knows_attempt=knows_attempt))

    def _confirmed(self, roster: Roster) -> Roster:
        """This roster, or the one before if this one was planned and is not in the store.

        The present roster may still come into the store, and this member has perhaps voted under it. So what it did
        there is kept until another roster takes that place.
        """
        confirming, self._confirming = self._confirming, None
        if confirming is not None:
            wait([confirming])
        # The first member votes only after it has written the roster, so a step that was applied confirms it, too.
        has_applied = self._state.progress.step.num_applied > roster.resume_step
        if not roster.is_planned or has_applied or find_roster(self._store, roster.number, roster.change) == roster:
            return roster
        assert self._roster_before is not None
        return self._roster_before

    def _catch_up(self, roster: Roster) -> None:
        """Bring the state to where a planned roster begins, though this member never trains under it."""
        assert roster.ruling is not None
        assert roster.ruling.numbers is not None
        progress = self._state.progress
        progress.step = progress.step.obey(roster)
        assert self._trainer is not None
        self._trainer.catch_up(roster.resume_step, roster.ruling.numbers)
        progress.is_between_steps = False
        self._roster_before, self._roster = self._roster, roster

    def switch(self, following: Roster) -> Roster | None:
        """Go on under a planned roster; None if it has no seat for this member."""
        self._changed_at_s = time.perf_counter()
        assert self._keeper is not None
        names = [seat.name for seat in following.seats]
        if self._spec.member not in names:
            os.nice(_NICENESS)  # others may train on the same cores
        self._keeper.close()
        if names[0] == self._spec.member:
            self._confirming = self._writer.submit(self._write, following)
        if self._spec.member not in names:
            self.events.flush()
            self._leave(following)
            return None
        self.events.turn_to(following.number, following.change, self._spec.member)
        self._roster_before, self._roster = self._roster, following
        self._state.progress.step = self._state.progress.step.obey(following)
        return following

    def _write(self, roster: Roster) -> None:
        try:
            self._store.create(keys.roster(roster.number, roster.change), encode_record(roster))
        except ObjectExists as error:
            if read_roster(self._store, roster.number, roster.change) != roster:
                raise PeerLost(f"roster {roster.label} was written by members that have lost another one") from error

    def _leave(self, following: Roster) -> None:
        """Wait until the next roster is in the store. Until then, this member may still be needed.

        Whichever roster it is, it has no seat for this member: a roster after a lost member has seats only for those
        that have answered a survey, and this one answers none before it raises an error here.
        """
        while find_roster(self._store, following.number, following.change) is None:
            self._abort.sleep(_LOOK_S)
            if set(self._peers.lost) & {seat.name for seat in following.seats}:
                raise PeerLost("a member was lost before this one could leave")

    def _answer(self, roster: Roster, *, knows_attempt: bool = True) -> Answer:
        return self._state.progress.answer(
            self._spec.member,
            roster,
            self._state.samples.num_grains,
            num_evaluations=len(self._state.history.ledger.evaluations),
            owes_checkpoint=self._keeper is not None and self._keeper.owes_checkpoint,
            suspects=self._peers.lost,
            knows_attempt=knows_attempt,
        )

    def _take_up(self, roster: Roster) -> None:
        """Prepare for the next roster, with the present state or with that of a checkpoint."""
        self._roster_before, self._roster = self._roster, roster
        assert roster.ruling is not None
        if roster.ruling.kind != "rolled_back":
            self._state.progress.follow(roster, self._spec.member, self._state.training)
            return
        self._readers.close()
        self._readers = ExitStack()
        manifest = manifest_of(self._store, roster, roster.resume_step)
        self._state = self._load_state(manifest, roster.stages[self._spec.member])
        self._evaluated = None
        self._samples = self._state.samples
        self._supply = self._open_supply(self._state.stage)

    def _tell_late(self, planned_s: float, computed_s: float) -> None:
        at_s, member = time.time(), self._spec.member
        self.events.write(PaceMissed(at_s=at_s, member=member, planned_s=planned_s, computed_s=computed_s))

    def _tell_start(self, seat: Seat) -> None:
        stage, roster = self._state.stage, seat.roster
        if not self._has_started:
            self._has_started = True
            self.events.write(
                MemberStarted(
                    at_s=time.time(),
                    member=self._spec.member,
                    num_layers=stage.end_layer - stage.first_layer,
                    parameter_bytes=sum(p.numel() * p.element_size() for p in stage.module.parameters()),
                    cpu_s=time.process_time(),
                )
            )
        if seat.rank == 0 and roster.change > 0:
            assert self._roster_before is not None
            assert roster.ruling is not None
            was_first = self._roster_before.members[0].name == self._spec.member
            if roster.ruling.kind in ("stands", "unfinished") and not was_first:
                for event in untold_events(self._store, self._recent, self._roster_before, roster):
                    self.events.write(event)
            self.events.write(
                RosterChanged(
                    at_s=time.time(),
                    change=roster.change,
                    members=tuple(seat.name for seat in roster.seats),
                    step=roster.first_computed,
                    ruling=roster.ruling.kind,
                    wall_s=time.perf_counter() - self._changed_at_s,
                )
            )
