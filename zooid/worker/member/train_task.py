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
from zooid.core.resources.machine import peak_resident_bytes
from zooid.core.runs import keys
from zooid.core.runs.events import Evaluated, MemberStarted, MemberTrained, RosterChanged, StepCommitted
from zooid.core.runs.roster import Answer, Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import build_stage
from zooid.schedule.buckets import reduces_early
from zooid.schedule.samples import split_grains
from zooid.schedule.step_state import Phase
from zooid.schedule.succession import grains_of, uncomputed_grains_of
from zooid.store import EventWriter, Fence, ObjectStore
from zooid.store.event_log import last_told
from zooid.store.member_program import EXIT_FAILED, end_process
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.contents import Tensors
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.gradients.bucketed import Reducing
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.evaluation import Evaluator
from zooid.worker.member.job_output import shown_prints
from zooid.worker.member.role import Role, learn, manifest_of
from zooid.worker.member.seat import Seat, take_seat
from zooid.worker.member.survey import Survey
from zooid.worker.member.training_loop import Trainer
from zooid.worker.reach import open_reach
from zooid.worker.samples.sample_supply import Supply, supply
from zooid.worker.state.stage_state import load_body
from zooid.worker.state.training_state import Tie
from zooid.worker.step.stage_runner import StageRunner
from zooid.worker.step.transactions import Assignment, Transactions
from zooid.worker.step.vote_numbers import finite

logger = logging.getLogger(__name__)

_MAX_RECENT = 10_000
_LOSSES = ("PeerLost", "CommTimeout")
"""Errors for which a peer gives up because another member is lost, and not because of something that it has done."""


def train(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> None:
    """Take the seat that the roster gives this member, and train to the end of the run."""
    with employed(spec, store, abort) as member:
        roster: Roster | None = member.role.first_roster
        while roster is not None:
            try:
                with member.under(roster) as (trainer, keeper):
                    num_steps = trainer.run()
                    abort.check()
                    if (last := trainer.last_timeline) is not None:
                        at, timeline = last
                        store.put(keys.timeline(at, spec.member), encode_record(timeline))
                    keeper.finish(num_steps, trainer.scale, trainer.ledger)
                break
            except (PeerLost, CommTimeout) as loss:
                roster = member.next_roster(roster, loss)
        member.events.write(MemberTrained(at_s=time.time(), member=spec.member, peak_bytes=peak_resident_bytes()))


@contextmanager
def at_work(
    spec: WorkerSpec, store: ObjectStore, abort: Abort
) -> Iterator[tuple[Trainer, CheckpointKeeper, EventWriter]]:
    """Everything that a member needs to run steps under its first roster, from when all members are there."""
    with employed(spec, store, abort) as member, member.under(member.role.first_roster) as (trainer, keeper):
        yield trainer, keeper, member.events


@contextmanager
def employed(spec: WorkerSpec, store: ObjectStore, abort: Abort) -> Iterator["Member"]:
    """A member that has learned its role, until it ends."""
    with ExitStack() as work:
        fence = Fence(store, spec.roster)
        work.enter_context(fence.watched(abort, lambda: end_process(EXIT_FAILED)))
        events = work.enter_context(EventWriter(store, spec.member, spec.roster, fence))
        work.enter_context(shown_prints(spec.member, events.write))
        with Member(spec, store, abort, events, learn(spec, store, abort)) as member:
            yield member


class Member:
    """One process, under one roster after the other. What it has learned and trained outlives them."""

    def __init__(self, spec: WorkerSpec, store: ObjectStore, abort: Abort, events: EventWriter, role: Role) -> None:
        self.role = role
        self.events = events
        self._spec = spec
        self._store = store
        self._abort = abort
        self._roster = role.first_roster
        self._before: Roster | None = None
        """The roster that the present one has replaced."""
        self._lost_at_s: float | None = None
        """When the loss was noticed that led to the present roster."""
        self._seat: Seat | None = None
        self._keeper: CheckpointKeeper | None = None
        self._recent: deque[StepCommitted | Evaluated] = deque(maxlen=_MAX_RECENT)
        """What the first member tells; it may be lost before it can."""
        self._work = ExitStack()
        self._body = load_body(store, role, role.manifest, role.first_roster.stages[spec.member])
        self._supply = self._open_supply()
        self._reach = open_reach(spec, store, role.plan, role.first_roster, role.device, abort)

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._reach.close(in_peace=kind is None)
        self._work.close()

    @contextmanager
    def under(self, roster: Roster) -> Iterator[tuple[Trainer, CheckpointKeeper]]:
        """Everything that is needed to run steps under this roster, from when all its members are there."""
        role, body = self.role, self._body
        self._seat = self._keeper = None
        try:
            seat = self._seat = take_seat(self._reach, roster, self._spec.member, list(role.ties), self._device_of_sums)
            body.state.regroup(
                Reducing(
                    seat.groups.stage,
                    roster.num_replicas,
                    seat.replica or 0,
                    role.plan.is_direct,
                    reduces_early(seat.stage),
                    keeps_own=role.plan.survives_losses,
                    num_grains=role.samples.num_grains(0),
                    is_reproducible=role.plan.reproducible,
                ),
                {number: _tie(role, seat, number) for number in seat.groups.ties},
            )
            keeper = self._keeper = self._new_keeper(seat)
            callbacks = Callbacks(
                role.job, self.events.write, self._model_tensors, is_first=seat.rank == 0, recent=self._recent
            )
            assignment = Assignment(role.job, role.samples, role.shape, seat, role.device)
            runner = StageRunner(role.objective, self._supply.train, body.stage, body.state, seat, role.device)
            transactions = Transactions(
                assignment,
                runner,
                body.state,
                keeper,
                callbacks.tell,
                callbacks.show_weights,
                self._abort,
                body.place,
            )
            evaluate = self._evaluation(seat)
            trainer = Trainer(assignment, transactions, body.state, keeper, callbacks, body.standing, evaluate)
            self._tell_start(seat)
            seat.meet()  # nobody's clock starts before all are here
            yield trainer, keeper
        except (PeerLost, CommTimeout):
            if role.plan.survives_losses:
                self._reach.end(in_peace=False)
            raise
        except BaseException as error:
            self._abort.set(f"{type(error).__name__}: {error}")  # others hear why, and do not take this one for lost
            raise
        self._reach.end(in_peace=True)

    def next_roster(self, roster: Roster, loss: PeerLost | CommTimeout) -> Roster | None:
        """The roster that follows after a loss, as the survivors agree; None if it has no seat for this member.

        Raises the loss itself where nothing can be done about it.
        """
        is_failure = isinstance(loss, PeerLost) and loss.cause != "" and loss.cause not in _LOSSES
        if not self.role.plan.survives_losses or self._abort.is_set or is_failure:
            raise loss
        self._lost_at_s = time.perf_counter()
        logger.warning("%s; the members that are left go on without it", loss)
        survey = Survey(
            self._store,
            roster,
            timeout_s=self._spec.timeout_s,
            num_grains=self.role.samples.num_grains,
            lost=lambda: self._reach.lost,
            abort=self._abort,
        )
        self._reach.call()
        self.events.flush()  # whoever is first next looks up what this member has told, and tells the rest
        found = survey.replace(self._answer(roster))
        self.events.turn_to(found.number, found.change, self._spec.member)
        if self._spec.member not in found.stages:
            return None
        self._take_up(found)
        return found

    def _answer(self, roster: Roster) -> Answer:
        place = self._body.place
        place.step = place.step.release()
        prepared = place.prepared if place.step.phase is Phase.PREPARED else None
        return Answer(
            member=self._spec.member,
            change=roster.change,
            num_applied=place.step.num_applied,
            is_prepared=prepared is not None,
            is_finite=prepared is None or prepared.is_finite,
            square_sum=finite(prepared.square_sum) if prepared else 0.0,
            loss_sum=finite(prepared.loss_sum) if prepared else 0.0,
            weight=finite(prepared.weight) if prepared else 0.0,
            applied=place.applied,
            has_finished=self._has_finished(roster),
            is_between_steps=place.is_between_steps,
            num_evaluations=len(self._body.standing.ledger.evaluations),
            owes_checkpoint=self._keeper is not None and self._keeper.owes_checkpoint,
            suspects=tuple(sorted(self._reach.lost)),
        )

    def _take_up(self, roster: Roster) -> None:
        """Get ready for the next roster: with the state that there is, or with that of a checkpoint."""
        body = self._body
        if self._keeper is not None:
            body.saved = self._keeper.saved
        self._before, self._roster = self._roster, roster
        assert roster.ruling is not None
        if roster.ruling.kind == "rolled_back":
            self._work.close()
            self._work = ExitStack()
            self._body = load_body(
                self._store, self.role, manifest_of(self._store, roster), roster.stages[self._spec.member]
            )
            self._supply = self._open_supply()
            return
        if roster.ruling.kind == "unfinished":
            has_sums = body.place.finished is not None or body.place.step.phase is Phase.PREPARED
            body.place.prepared = None
            if has_sums and not self._keeps_sums(roster):
                body.place.finished = None
                body.state.drop()
        elif body.place.finished is not None:
            if body.place.step.num_applied > roster.resume_step:
                body.state.drop()  # it had begun the next step, which the others had not
            body.place.finished = None  # the sums of a step that stands are reduced already
        body.place.step = body.place.step.obey(roster)
        body.place.is_between_steps = roster.is_between_steps

    def _has_finished(self, roster: Roster) -> bool:
        """True if this member has the sums of all grains that this roster gives it, not only of earlier ones."""
        finished, replica = self._body.place.finished, roster.replica_of(self._spec.member)
        if finished is None or replica is None:
            return False
        given = grains_of(roster, finished.step, self.role.samples.num_grains(finished.step))[replica]
        return set(finished.grains) >= set(given)

    def _keeps_sums(self, roster: Roster) -> bool:
        """True if this member goes on with the sums of the grains that its pipeline has finished."""
        replica = roster.replica_of(self._spec.member)
        return replica is not None and bool(roster.computed and roster.computed[replica])

    def _open_supply(self) -> Supply:
        stage, role = self._body.stage, self.role
        reads = stage.first_layer == 0 or stage.is_last
        return self._work.enter_context(
            supply(role.job, role.data, role.samples, self._deal, reads=reads, pin=role.device.type == "cuda")
        )

    def _deal(self, step: int | None, num_grains: int) -> tuple[int, ...]:
        """The grains of this member's replica, in a step of the present roster; the step is None in evaluation."""
        roster = self._roster
        replica = roster.replica_of(self._spec.member)
        if replica is None:
            return ()
        if step is None:
            return split_grains(num_grains, roster.shares)[replica]
        return uncomputed_grains_of(roster, step, num_grains)[replica]

    def _new_keeper(self, seat: Seat) -> CheckpointKeeper:
        role, roster = self.role, seat.roster
        return CheckpointKeeper(
            self._store,
            self._spec.checkpoints,
            contents.division_of(
                role.layered, role.plan, roster.number, roster.change, num_replicas=roster.num_replicas
            ),
            self._body.manifest,
            seat,
            self._body.state,
            self._model_tensors,
            self.events,
            self._abort,
            self._body.saved,
        )

    def _model_tensors(self) -> Tensors:
        return self._body.model_tensors()

    def _evaluation(self, seat: Seat) -> Callable[[int, int], Evaluated] | None:
        """(epoch, steps so far) -> what the evaluation data give, on the parameters and buffers that are trained."""
        role, body, reading = self.role, self._body, self._supply
        if reading.evaluation_sizes is None:
            return None
        stage = body.stage
        tensors = {**body.kept, **dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
        evaluated = build_stage(role.layered, stage.first_layer, stage.end_layer, tensors, role.device, "eval")
        evaluator = Evaluator(role.objective, evaluated, seat, reading.evaluate, reading.evaluation_sizes, role.device)
        return lambda epoch, step: evaluator.run(role.shape, self._abort, epoch, step)

    @property
    def _device_of_sums(self) -> torch.device:
        return self.role.device if self.role.plan.transport == "nccl" else torch.device("cpu")

    def _tell_start(self, seat: Seat) -> None:
        stage, roster = self._body.stage, seat.roster
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
            assert roster.ruling is not None
            assert self._lost_at_s is not None
            self._tell_untold(roster)
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

    def _tell_untold(self, roster: Roster) -> None:
        """Tell of what the first member of the roster before has committed, and was lost before it could tell."""
        assert self._before is not None
        assert roster.ruling is not None
        teller = self._before.members[0].name
        if roster.ruling.kind == "rolled_back" or teller == self._spec.member:
            return
        step, evaluated = last_told(self._store, teller, roster.number, roster.change - 1)
        for event in self._recent:
            is_step = isinstance(event, StepCommitted)
            first, end = (
                (step + 1, roster.resume_step) if is_step else (evaluated + 1, self._end_of_evaluations(roster))
            )
            if max(first, self._before.first_computed) <= event.step < end:
                self.events.write(event)

    @staticmethod
    def _end_of_evaluations(roster: Roster) -> int:
        """Evaluations from here on are made, or told of, under this roster itself."""
        return roster.resume_step if roster.is_between_steps else roster.resume_step + 1


def _tie(role: Role, seat: Seat, number: int) -> Tie:
    stages, names = list(role.ties.items())[number]
    return Tie(names, seat.groups.ties[number], counts_here=seat.stage == stages[0])
