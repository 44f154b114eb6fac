"""The steps of a member as transactions: actions run, then all members vote, then each applies the step or drops it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from zooid.core.abort import Abort
from zooid.core.errors import CommError
from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import NO_WISH, Wish
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.events import StepCommitted
from zooid.core.runs.roster import StepNumbers
from zooid.schedule.actions import Action, Kind
from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import SamplePlan
from zooid.schedule.step_state import Decision, Phase, StepState, Vote
from zooid.schedule.succession import grains_of, uncomputed_grains_of
from zooid.worker.member.seat import Seat
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.executor import Executor, Recording
from zooid.worker.step.gradient_handover import give_to_copies, hand_over, take_as_copy
from zooid.worker.step.pending import Underway
from zooid.worker.step.stage_runner import Finished, StageRunner
from zooid.worker.step.step_counts import Counted
from zooid.worker.step.verdict import Verdict
from zooid.worker.step.vote_numbers import StageNumbers, finite

_LEAST_SCALE = 2.0**-14
"""A loss scale below this does not explain an overflow any more: the numbers themselves are not finite."""


class Keeper(Protocol):
    """Writes checkpoints beside the training, and makes them count when all members have written their parts."""

    def is_due(self, num_steps: int) -> bool:
        """Whether this member finds that one should be written after so many steps."""

    def is_written(self) -> bool:
        """Whether this member's part of the one that is under way is in the store; raises what went wrong."""

    def begin(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """Take the state after so many steps, and write it in the background; none may be under way."""

    def save(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """The same, but wait for one that is under way, and do nothing where this state has been taken already."""

    def complete(self) -> None:
        """All members have written their parts."""


@dataclass(frozen=True)
class Assignment:
    """What one member trains, and where it sits."""

    job: Job
    samples: SamplePlan
    shape: StepShape
    seat: Seat
    device: torch.device


@dataclass
class Agenda:
    """What members have to do when a step ends. Only the first member has wishes that others do not know of."""

    noted: Wish = NO_WISH
    """Wishes that travel with this member's next vote."""
    agreed: Wish = NO_WISH
    """Wishes that all members know of."""
    is_checkpoint_due: bool = False
    """True where the checkpoint rule asks for a checkpoint."""


@dataclass
class Place:
    """Where a member stands in the history of a run. It outlives rosters."""

    step: StepState
    scale: LossScale
    agenda: Agenda = field(default_factory=Agenda)
    prepared: StageNumbers | None = None
    """What this member's stage found in the step that it is prepared for."""
    applied: StepNumbers | None = None
    """Numbers of the last step that this member applied under a roster."""
    is_between_steps: bool = False
    """True until evaluation, checkpoint and early stop after the last step are done."""
    finished: Finished | None = None
    """This member's part of the next step, if its whole pipeline has computed it under a roster that could not commit
    it. The state has the sums."""


class Transactions:
    """Runs the actions of one step after the other. A step that fails leaves nothing behind and can be run again."""

    def __init__(
        self,
        assignment: Assignment,
        runner: StageRunner,
        state: TrainingState,
        keeper: Keeper,
        on_commit: Callable[[StepCommitted], Wish],
        on_apply: Callable[[int], None],
        abort: Abort,
        place: Place,
    ) -> None:
        """`on_commit` is told of every step once its verdict is known; `on_apply` gets the number of steps applied."""
        self.place = place
        self.last_full: tuple[int, Recording] | None = None
        """Number and recording of the last step that had a full batch."""
        self._job = assignment.job
        self._samples = assignment.samples
        self._shape = assignment.shape
        self._seat = assignment.seat
        self._runner = runner
        self._state = state
        self._keeper = keeper
        self._on_commit = on_commit
        self._on_apply = on_apply
        self._start_s = 0.0
        self._unjudged: Counted | None = None
        """A step that is applied, but not judged."""
        is_alone_on_gpu = self._seat.roster.num_voters == 1 and assignment.device.type == "cuda"
        self._may_judge_later = is_alone_on_gpu and self._job.autocast != "fp16" and self._job.on_weights is None
        self._schedules: dict[tuple[tuple[int, ...], ...], StepSchedule] = {}
        self._executor = Executor(self._seat.name, self, abort)

    @property
    def num_applied(self) -> int:
        return self.place.step.num_applied

    @property
    def scale(self) -> LossScale:
        return self.place.scale

    @property
    def agenda(self) -> Agenda:
        return self.place.agenda

    def run_step(self) -> None:
        """Run one step from its first action to its apply; if anything goes wrong, nothing of it remains."""
        self._start_s = time.perf_counter()
        if self.place.step.phase is Phase.PREPARED:
            self._drop()
        self.place.step = self.place.step.begin()
        step = self.place.step.step
        indices = self._samples.grains(step)
        replica, stage = self._seat.replica, self._seat.stage
        grains = grains_of(self._seat.roster, step, len(indices))
        if replica is None:
            self._run_as_copy(grains)
            return
        schedule = self._schedule(step, len(indices))
        finished, self.place.finished = self.place.finished, None
        try:
            self._runner.begin_step(
                step,
                indices,
                grains,
                self.scale,
                finished=finished,
                num_finished=len(grains[replica]) - len(schedule.grains[replica]),
            )
            recording = self._executor.run(schedule.lists[replica][stage], schedule.needs[replica][stage])
        except CommError:
            if self._executor.has_computed and self.place.step.phase is not Phase.APPLIED:
                self.place.finished = self._runner.finished()
            if self.place.step.phase is Phase.RUNNING:  # else it is prepared, and the step may still be applied
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise
        if self._samples.step_size(step) == self._samples.batch_size:
            self.last_full = (step, recording)

    def _run_as_copy(self, grains: Sequence[Sequence[int]]) -> None:
        """Wait for what the replicas of this stage have reduced, and commit it as they do."""
        try:
            self._state.begin(grains)
            own = self.place.prepared = take_as_copy(self._seat, self._state)
            self.place.step = self.place.step.prepare()
            learning_rate = self._state.learning_rate
            weight = self._runner.nominal_weight_of(self._samples.step_size(self.place.step.step))
            self._end_step(self._judge(own, self.place.step, weight), learning_rate)
        except CommError:
            if self.place.step.phase is Phase.RUNNING:
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise

    def settle(self) -> None:
        """Judge the step that was applied without a verdict, if there is one."""
        counted, self._unjudged = self._unjudged, None
        if counted is not None:
            verdict = self._judge(counted.read(self.scale.factor), counted.step, counted.nominal_weight)
            if verdict.decision is not Decision.APPLY:
                raise verdict.refusal(self._seat.name)
            self._tell(verdict, counted.learning_rate, counted.start_s)

    def compute(self, action: Action) -> None:
        if action.kind is Kind.COMMIT:
            self._commit()
        else:
            self._runner.compute(action)

    def begin(self, action: Action) -> Underway:
        return self._runner.begin(action)

    def _drop(self) -> None:
        if self.place.step.phase is not Phase.APPLIED:
            if self.place.finished is None:
                self._runner.drop()
            self.place.step = self.place.step.drop()

    def _schedule(self, step: int, num_grains: int) -> StepSchedule:
        grains = tuple(uncomputed_grains_of(self._seat.roster, step, num_grains))
        if grains not in self._schedules:
            schedule = self._shape.step(grains)
            check_schedule(schedule)
            self._schedules[grains] = schedule
        return self._schedules[grains]

    def _commit(self) -> None:
        """Hold the reduced gradients, learn the verdict of all members, and apply, skip or drop the step accordingly.

        A member that is alone on a GPU applies first and learns the verdict in the next step: to wait for a GPU's
        numbers in every step would leave it idle. Nothing of a step is told or saved before its verdict.
        """
        self.settle()
        self.place.step = self.place.step.prepare()
        counted = Counted(
            self.place.step,
            self._runner.count(),
            self._runner.weight,
            self._runner.nominal_weight,
            self._state.learning_rate,
            self._start_s,
        )
        if self._may_judge_later and counted.weight > 0:
            self._apply(counted.scale(self._job), self._ballot())
            self._unjudged = counted
            return
        own = self.place.prepared = counted.read(self.scale.factor)
        give_to_copies(self._seat, self._state, own)
        self._end_step(self._judge(own, counted.step, counted.nominal_weight), counted.learning_rate)

    def _end_step(self, verdict: Verdict, learning_rate: float | None) -> None:
        if verdict.decision is Decision.DROP:
            self._drop()
            raise verdict.refusal(self._seat.name)
        self._carry_out(verdict)
        self._tell(verdict, learning_rate)

    def apply_standing(self) -> None:
        """Apply the step that stands by the roster's ruling. Those who lack its gradients get them first.

        All members vote on it again, also those that have applied it, so that nobody begins the next step before all
        can end this one.
        """
        seat, ruling = self._seat, self._seat.roster.ruling
        if ruling is None or ruling.numbers is None:
            return
        self._start_s = time.perf_counter()
        place, step = self.place, seat.roster.resume_step
        has_applied = self.num_applied > step
        hand_over(seat, self._state, None if has_applied else place.step.phase is Phase.PREPARED)
        if place.step.phase is Phase.RUNNING:
            place.step = place.step.prepare()
        vote = replace(self._ballot(), num_prepared=1.0, square_sums=(0.0,) * seat.roster.num_stages)
        total = replace(
            Vote.of(seat.add_up(vote.values())),
            num_finite=float(seat.roster.num_voters) if ruling.numbers.is_finite else 0.0,
            loss_sum=ruling.numbers.loss_sum,
            weight=ruling.numbers.weight,
            square_sums=ruling.numbers.square_sums,
        )
        nominal_weight = self._runner.nominal_weight_of(self._samples.step_size(step))
        own = StageNumbers(total.square_sum, total.loss_sum, total.loss_sum, total.weight)
        decided = StepState(step, Phase.PREPARED).decide(total, seat.roster.num_voters, may_skip=self._may_skip)
        verdict = Verdict(self._job, step, own, total, decided, nominal_weight)
        learning_rate = self._state.learning_rate
        if has_applied:
            self._agree(total)
            place.is_between_steps = True
        else:
            self._carry_out(verdict)
        self._tell(verdict, learning_rate)

    def _carry_out(self, verdict: Verdict) -> None:
        """Apply or skip the step, whatever all members have decided."""
        total, is_applied = verdict.total, verdict.decision is Decision.APPLY
        factor = verdict.scale(self.scale.factor) if is_applied else None
        if self._job.autocast == "fp16":
            self.place.scale = self.scale.after(is_finite=is_applied)
        self._apply(factor, total)
        self.place.applied = StepNumbers(
            loss_sum=finite(total.loss_sum),
            weight=finite(total.weight),
            square_sums=tuple(map(finite, total.square_sums)),
            is_finite=is_applied,
        )

    def _apply(self, factor: float | torch.Tensor | None, total: Vote) -> None:
        """Multiply the held gradients by the factor and update the parameters, or skip the step where there is none.

        `total` also says what all members have to do when the step ends.
        """
        if factor is None:
            self._state.advance()
        else:
            self._state.apply(factor)
        self.place.step = self.place.step.apply()
        self.place.is_between_steps = True
        self.place.prepared = None
        self.place.finished = None
        self._agree(total)
        if factor is not None:
            self._on_apply(self.num_applied)

    def _agree(self, total: Vote) -> None:
        """Note what the vote says beside the step itself."""
        if total.num_saved == self._seat.roster.num_voters:
            self._keeper.complete()
        self.place.agenda = Agenda(agreed=Wish(int(total.wishes)), is_checkpoint_due=total.num_due > 0)

    def _ballot(self) -> Vote:
        """The part of this member's vote that does not depend on what the step computed."""
        return Vote(
            num_saved=float(self._keeper.is_written()),
            num_due=float(self._keeper.is_due(self.place.step.step + 1)),
            wishes=float(self.agenda.noted.value),
        )

    def _judge(self, own: StageNumbers, step: StepState, nominal_weight: float) -> Verdict:
        """What all members say about a step, of which this member's stage has found these numbers."""
        seat = self._seat
        vote = own.vote(self._ballot(), seat.stage, seat.roster.num_stages, is_first_replica=seat.replica == 0)
        total = Vote.of(seat.add_up(vote.values()))
        decision = step.decide(total, seat.roster.num_voters, may_skip=self._may_skip)
        return Verdict(self._job, step.step, own, total, decision, nominal_weight)

    @property
    def _may_skip(self) -> bool:
        return self._job.autocast == "fp16" and self.scale.factor > _LEAST_SCALE

    def _tell(self, verdict: Verdict, learning_rate: float | None, start_s: float | None = None) -> None:
        self.agenda.noted |= self._on_commit(
            StepCommitted(
                at_s=time.time(),
                step=verdict.step,
                epoch=self._samples.epoch_of(verdict.step),
                loss=verdict.loss,
                num_samples=self._samples.step_size(verdict.step),
                step_s=time.perf_counter() - (self._start_s if start_s is None else start_s),
                gradient_norm=verdict.norm,
                learning_rate=learning_rate,
                is_skipped=verdict.decision is Decision.SKIP,
            )
        )
