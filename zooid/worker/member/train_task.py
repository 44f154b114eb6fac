"""The task `train` of the worker program: take one seat of a run's roster, and train there.

When a member is lost, the others agree on the next roster and go on under it, with the state that they have.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, PeerLost
from zooid.core.records import encode_record
from zooid.core.resources.process_memory import peak_resident_bytes
from zooid.core.runs import keys
from zooid.core.runs.events import Evaluated, MemberStarted, MemberTrained, RosterChanged, StepCommitted
from zooid.core.runs.roster import Answer, Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import build_stage
from zooid.schedule.buckets import reduces_early
from zooid.schedule.samples import split_grains
from zooid.schedule.succession import uncomputed_grains_of
from zooid.store import EventWriter, Fence, ObjectStore
from zooid.store.member_program import EXIT_FAILED, end_process
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.gradients.bucket_gradients import ReplicaReduction
from zooid.worker.gradients.tied_gradients import TiedParameters
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.evaluation import Evaluator
from zooid.worker.member.job_output import shown_prints
from zooid.worker.member.role import Role, learn_role, manifest_of
from zooid.worker.member.seat import Seat
from zooid.worker.member.stop_listener import StopListener
from zooid.worker.member.survey import Survey
from zooid.worker.member.training_loop import Trainer
from zooid.worker.member.untold_events import untold_events
from zooid.worker.peers import open_peers
from zooid.worker.samples.sample_supply import SampleSupply, open_supply
from zooid.worker.state.stage_state import load_stage_state
from zooid.worker.step.stage_runner import StageRunner
from zooid.worker.step.transactions import Assignment, Transactions

logger = logging.getLogger(__name__)

_MAX_RECENT = 10_000
_CAUSED_BY_LOST_MEMBER = ("PeerLost", "CommTimeout")
"""Errors with which a peer gives up because another member is lost, not because it has failed itself."""


def train(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> None:
    """Take the seat that the roster gives this member, and train to the end of the run."""
    with open_member(spec, store, abort) as member:
        roster: Roster | None = member.role.first_roster
        while roster is not None:
            try:
                with member.under(roster) as (trainer, keeper):
                    num_steps = trainer.run()
                    abort.check()
                    if (last := trainer.last_timeline) is not None:
                        step, timeline = last
                        store.put(keys.timeline(step, spec.member), encode_record(timeline))
                    keeper.finish(num_steps, trainer.scale, trainer.ledger)
                break
            except (PeerLost, CommTimeout) as error:
                roster = member.next_roster(roster, error)
        member.events.write(MemberTrained(at_s=time.time(), member=spec.member, peak_bytes=peak_resident_bytes()))


@contextmanager
def open_member(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> Iterator["Member"]:
    """A member that has learned its role and connected to its peers, which it leaves in the end."""
    with ExitStack() as stack:
        fence = Fence(store, spec.roster)
        stop = StopListener(store, spec.roster, has_limits=spec.has_limits)
        stack.enter_context(fence.watched(abort, lambda: end_process(EXIT_FAILED), stop.look))
        events = stack.enter_context(EventWriter(store, spec.member, spec.roster, fence, reports_usage=True))
        stack.enter_context(shown_prints(spec.member, events.write))
        with Member(spec, store, abort, events, learn_role(spec, store, abort), stop) as member:
            yield member


class Member:
    """One process, under one roster after the other. Its role and its trained state outlive rosters."""

    def __init__(
        self,
        spec: WorkerSpec,
        store: ObjectStore,
        abort: Abort,
        events: EventWriter,
        role: Role,
        stop: StopListener,
    ) -> None:
        self.role = role
        self.events = events
        self._spec = spec
        self._store = store
        self._abort = abort
        self._stop = stop
        self._roster = role.first_roster
        self._roster_before: Roster | None = None
        """The roster that the present one has replaced."""
        self._lost_at_s: float | None = None
        """When this member noticed the lost member that led to the present roster."""
        self._keeper: CheckpointKeeper | None = None
        self._recent: deque[StepCommitted | Evaluated] = deque(maxlen=_MAX_RECENT)
        """Events that the first member writes, in case it is lost before it can."""
        self._readers = ExitStack()
        self._state = load_stage_state(store, role, role.manifest, role.first_roster.stages[spec.member])
        self._supply = self._open_supply()
        self._peers = open_peers(spec, store, role.plan, role.first_roster, role.device, abort)

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._peers.close(is_clean=kind is None)
        self._readers.close()

    @contextmanager
    def under(self, roster: Roster) -> Iterator[tuple[Trainer, CheckpointKeeper]]:
        """Everything needed to run steps under this roster, from when all its members have arrived."""
        role = self.role
        self._keeper = None
        try:
            groups = self._peers.groups(roster, list(role.ties))
            device_of_sums = role.device if role.plan.transport == "nccl" else torch.device("cpu")
            seat = Seat(roster, roster.rank_of(self._spec.member), device_of_sums, groups)
            keeper = self._keeper = self._new_keeper(seat)
            trainer = self._new_trainer(seat, keeper)
            self._tell_start(seat)
            seat.barrier()  # nobody's clock starts before all are here
            yield trainer, keeper
        except (PeerLost, CommTimeout):
            if role.plan.survives_losses:
                self._peers.end(is_clean=False)
            raise
        except BaseException as error:
            self._abort.set(f"{type(error).__name__}: {error}")  # peers hear why, and do not take this member for lost
            raise
        self._peers.end(is_clean=True)

    def _new_trainer(self, seat: Seat, keeper: CheckpointKeeper) -> Trainer:
        role, state = self.role, self._state
        reduction = ReplicaReduction(
            seat.groups.stage,
            seat.replica or 0,
            role.plan.is_direct,
            reduces_early(seat.stage),
            keeps_own=role.plan.survives_losses,
            num_grains=role.samples.num_grains(0),
            is_reproducible=role.plan.reproducible,
        )
        ties = {
            number: TiedParameters(names, seat.groups.ties[number], counts_here=seat.stage == stages[0])
            for number, (stages, names) in enumerate(role.ties.items())
            if number in seat.groups.ties
        }
        state.training.regroup(reduction, ties)
        is_first = seat.rank == 0
        self._stop.take_seat(is_first=is_first, checkpoint_s=lambda: keeper.checkpoint_s)
        callbacks = Callbacks(role.job, self.events.write, state.model_tensors, is_first, self._recent, self._stop)
        assignment = Assignment(role.job, role.samples, role.shape, seat, role.device)
        runner = StageRunner(role.objective, self._supply.train, state.stage, state.training, seat, role.device)
        transactions = Transactions(assignment, runner, state, keeper, callbacks, self._abort)
        return Trainer(assignment, transactions, state, keeper, callbacks, self._new_evaluation(seat))

    def _new_keeper(self, seat: Seat) -> CheckpointKeeper:
        role, roster = self.role, seat.roster
        division = contents.division_of(
            role.layered, role.plan, roster.number, roster.change, num_replicas=roster.num_replicas
        )
        rule = self._spec.checkpoints
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

    def _new_evaluation(self, seat: Seat) -> Callable[[int, int], Evaluated] | None:
        """(epoch, steps so far) -> the result of an evaluation with the parameters and buffers that are trained."""
        role, stage, supply = self.role, self._state.stage, self._supply
        if supply.evaluation_sizes is None:
            return None
        trained = {**dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
        tensors = self._state.untrained | trained
        evaluated = build_stage(role.layered, stage.first_layer, stage.end_layer, tensors, role.device, "eval")
        evaluator = Evaluator(role.objective, evaluated, seat, supply.evaluate, supply.evaluation_sizes, role.device)
        return lambda epoch, step: evaluator.run(role.shape, self._abort, epoch, step)

    def _open_supply(self) -> SampleSupply:
        stage, role = self._state.stage, self.role
        reads = stage.first_layer == 0 or stage.is_last
        pin = role.device.type == "cuda"
        supply = open_supply(role.job, role.data, role.samples, self._own_grains, reads=reads, pin=pin)
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
        self._lost_at_s = time.perf_counter()
        logger.warning("%s; the members that are left go on without it", error)
        survey = Survey(
            store=self._store,
            roster=roster,
            timeout_s=self._spec.timeout_s,
            num_grains=self.role.samples.num_grains,
            lost=lambda: self._peers.lost,
            abort=self._abort,
        )
        self._peers.announce_survey()
        self.events.flush()  # the next first member looks up what this member has told, and tells the rest
        next_roster = survey.replace(self._answer(roster))
        self.events.turn_to(next_roster.number, next_roster.change, self._spec.member)
        if self._spec.member not in next_roster.stages:
            return None
        self._take_up(next_roster)
        return next_roster

    def _answer(self, roster: Roster) -> Answer:
        return self._state.progress.answer(
            self._spec.member,
            roster,
            self.role.samples.num_grains,
            num_evaluations=len(self._state.history.ledger.evaluations),
            owes_checkpoint=self._keeper is not None and self._keeper.owes_checkpoint,
            suspects=self._peers.lost,
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
        manifest = manifest_of(self._store, roster)
        self._state = load_stage_state(self._store, self.role, manifest, roster.stages[self._spec.member])
        self._supply = self._open_supply()

    def _tell_start(self, seat: Seat) -> None:
        stage, roster = self._state.stage, seat.roster
        if roster.change == 0:
            self.events.write(
                MemberStarted(
                    at_s=time.time(),
                    member=self._spec.member,
                    num_layers=stage.end_layer - stage.first_layer,
                    parameter_bytes=sum(p.numel() * p.element_size() for p in stage.module.parameters()),
                    cpu_s=time.process_time(),
                )
            )
        elif seat.rank == 0:
            assert self._roster_before is not None
            assert roster.ruling is not None
            assert self._lost_at_s is not None
            was_first = self._roster_before.members[0].name == self._spec.member
            if roster.ruling.kind != "rolled_back" and not was_first:
                for event in untold_events(self._store, self._recent, self._roster_before, roster):
                    self.events.write(event)
            self.events.write(
                RosterChanged(
                    at_s=time.time(),
                    change=roster.change,
                    members=tuple(seat.name for seat in roster.seats),
                    step=roster.first_computed,
                    ruling=roster.ruling.kind,
                    wall_s=time.perf_counter() - self._lost_at_s,
                )
            )
