"""The steps of a member as transactions: actions run, then all members vote, then each applies the step or drops it."""

import time
from dataclasses import dataclass, replace

import torch
from msgspec import structs

from zooid.core.abort import Abort
from zooid.core.errors import CommError
from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import Wish
from zooid.core.runs.events import StepCommitted
from zooid.core.runs.roster import Roster, StepNumbers
from zooid.schedule.actions import Action, Kind
from zooid.schedule.planned_rosters import planned_roster
from zooid.schedule.samples import SamplePlan
from zooid.schedule.step_state import Decision, Phase, StepState, Vote
from zooid.schedule.succession import grains_of, split_grains_of, uncomputed_grains_of
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.member.batch_changes import BatchChanges, known_changes
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.change_watch import ChangeWatch
from zooid.worker.member.hospitality import Hospitality
from zooid.worker.member.seat import Seat
from zooid.worker.state.stage_state import StageState
from zooid.worker.step.executor import Executor, Recording
from zooid.worker.step.gradient_handover import give_to_copies, hand_over, take_as_copy
from zooid.worker.step.member_progress import Agenda
from zooid.worker.step.pending import Pending
from zooid.worker.step.step_meter import StepMeter
from zooid.worker.step.step_protocols import StepRunner
from zooid.worker.step.step_schedules import StepSchedules
from zooid.worker.step.verdict import StageNumbers, StepCounts, Verdict, finite

_MAX_POSTPONED = 10
"""A planned change waits for a pending checkpoint for at most so many steps."""
_MIN_SCALE = 2.0**-14
"""A loss scale below this no longer explains an overflow: the numbers themselves are not finite."""


@dataclass(frozen=True)
class Assignment:
    """The work of one member, and its seat."""

    job: Job
    samples: SamplePlan
    schedules: StepSchedules
    seat: Seat
    device: torch.device
    batches: BatchChanges


class Transactions:
    """Runs one step after the other. A step that fails leaves nothing behind and can be run again."""

    def __init__(
        self,
        assignment: Assignment,
        runner: StepRunner,
        state: StageState,
        keeper: CheckpointKeeper,
        callbacks: Callbacks,
        changes: ChangeWatch,
        guests: Hospitality,
        meter: StepMeter,
        abort: Abort,
    ) -> None:
        self.progress = state.progress
        self.meter = meter
        self.last_full: tuple[int, Recording] | None = None
        """Number and recording of the last step that had a full batch."""
        self._job = assignment.job
        self._samples = assignment.samples
        self._batches = assignment.batches
        self._schedules = assignment.schedules
        self._seat = assignment.seat
        self._runner = runner
        self._state = state.training
        self._keeper = keeper
        self._callbacks = callbacks
        self._changes = changes
        self._guests = guests
        self._start_s = 0.0
        self._unjudged: StepCounts | None = None
        """A step that is applied, but has no verdict yet."""
        self._num_postponed = 0
        """Number of steps for which an agreed change has waited for a checkpoint."""
        self._pace_s = 0.0
        """Seconds for each grain of the last step that this member has run."""
        self._uses_gpu = assignment.device.type == "cuda"
        is_alone_on_gpu = self._seat.roster.num_voters == 1 and assignment.device.type == "cuda"
        self._may_judge_later = is_alone_on_gpu and self._job.autocast != "fp16" and self._job.on_weights is None
        self._executor = Executor(self._seat.name, self, abort)

    def run_step(self) -> None:
        """Run one step from its first action to its apply. If anything goes wrong, nothing of the step remains."""
        self._start_s = time.perf_counter()
        if self.progress.step.phase is Phase.PREPARED:
            self._drop()
        self.progress.step = self.progress.step.begin()
        try:
            if self._seat.replica is None:
                self._run_as_copy()
            else:
                self._run_actions(self._seat.replica)
        except CommError:
            if self._executor.has_computed and self.progress.step.phase is not Phase.APPLIED:
                self.progress.finished = self._runner.finished()
            if self.progress.step.phase is Phase.RUNNING:  # else it is prepared, and the step may still be applied
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise

    def _run_actions(self, replica: int) -> None:
        step = self.progress.step.step
        indices = self._samples.grains(step)
        grains = grains_of(self._seat.roster, step, len(indices))
        schedule = self._schedules.of(uncomputed_grains_of(self._seat.roster, step, len(indices)))
        finished, self.progress.finished = self.progress.finished, None
        self._runner.begin_step(
            step,
            indices,
            grains,
            self.progress.scale,
            finished=finished,
            num_finished=len(grains[replica]) - len(schedule.grains[replica]),
        )
        stage = self._seat.stage
        recording = self._executor.run(schedule.lists[replica][stage], schedule.needs[replica][stage])
        self._pace_s = recording.computing_s() / max(1, len(schedule.grains[replica]))
        if self._samples.step_size(step) == self._samples.batch_size_of(step):
            self.last_full = (step, recording)
        if self._samples.step_size(step) == self._samples.batch_size:
            self.meter.note(step, recording)

    def _run_as_copy(self) -> None:
        """Receive the gradients that the replicas of this stage have reduced, and commit them as the replicas do."""
        step = self.progress.step.step
        self._state.begin(grains_of(self._seat.roster, step, self._samples.num_grains(step)))
        numbers = self._guests.take() if self._seat.is_guest else take_as_copy(self._seat, self._state)
        self.progress.prepared = numbers
        self.progress.step = self.progress.step.prepare()
        learning_rate = self._state.learning_rate
        weight = self._runner.nominal_weight_of(self._samples.step_size(step))
        self._end_step(self._judge(numbers, self.progress.step, weight), learning_rate)

    def compute(self, action: Action) -> None:
        if action.kind is Kind.COMMIT:
            self._commit()
        else:
            self._runner.compute(action)

    def begin(self, action: Action) -> Pending:
        return self._runner.begin(action)

    def settle(self) -> None:
        """Judge the step that was applied without a verdict, if there is one."""
        counts, self._unjudged = self._unjudged, None
        if counts is not None:
            numbers = counts.read(self.progress.scale.factor)
            verdict = self._judge(numbers, counts.step, counts.nominal_weight)
            if verdict.decision is not Decision.APPLY:
                raise verdict.error(self._seat.name)
            self._tell(verdict, counts.learning_rate, counts.start_s)

    def _drop(self) -> None:
        if self.progress.step.phase is not Phase.APPLIED:
            if self.progress.finished is None:
                self._runner.drop()
            self.progress.step = self.progress.step.drop()

    def _commit(self) -> None:
        """Hold the reduced gradients, learn the verdict of all members, and apply, skip or drop the step accordingly.

        A lone member on a GPU applies first and learns the verdict in the next step: waiting for a GPU's numbers in
        every step would leave it idle. Nothing of a step is told or saved before its verdict.
        """
        self.settle()
        self.progress.step = self.progress.step.prepare()
        counts = StepCounts(
            self.progress.step,
            self._runner.count(),
            self._runner.weight,
            self._runner.nominal_weight,
            self._state.learning_rate,
            self._start_s,
        )
        if self._may_judge_later and counts.weight > 0:
            self._apply(counts.gradient_factor(self._job), self._ballot())
            self._unjudged = counts
            return
        numbers = self.progress.prepared = counts.read(self.progress.scale.factor)
        give_to_copies(self._seat, self._state, numbers)
        self._guests.give()
        self._end_step(self._judge(numbers, counts.step, counts.nominal_weight), counts.learning_rate)

    def _end_step(self, verdict: Verdict, learning_rate: float | None) -> None:
        if verdict.decision is Decision.DROP:
            self._drop()
            raise verdict.error(self._seat.name)
        self._carry_out(verdict)
        self._tell(verdict, learning_rate)

    def apply_standing_step(self) -> None:
        """Apply the step that stands by the roster's ruling. Members that lack its gradients get them first.

        All members vote on it again, even those that have applied it, so that nobody begins the next step before all
        can end this one.
        """
        seat, ruling = self._seat, self._seat.roster.ruling
        if ruling is None or ruling.kind != "stands":
            return
        assert ruling.numbers is not None
        self._start_s = time.perf_counter()
        progress, step = self.progress, seat.roster.resume_step
        has_applied = progress.step.num_applied > step
        hand_over(seat, self._state, None if has_applied else progress.step.phase is Phase.PREPARED)
        if progress.step.phase is Phase.RUNNING:
            progress.step = progress.step.prepare()
        vote = replace(self._ballot(), num_prepared=1.0, square_sums=(0.0,) * seat.roster.num_stages)
        total = replace(
            Vote.of(seat.add_up(vote.values()), seat.roster.num_stages),
            num_finite=float(seat.roster.num_voters) if ruling.numbers.is_finite else 0.0,
            loss_sum=ruling.numbers.loss_sum,
            weight=ruling.numbers.weight,
            square_sums=ruling.numbers.square_sums,
        )
        nominal_weight = self._runner.nominal_weight_of(self._samples.step_size(step))
        total = known_changes(total, ruling.numbers)
        numbers = StageNumbers(total.square_sum, total.loss_sum, total.loss_sum, total.weight)
        verdict = self._decide(StepState(step, Phase.PREPARED), numbers, total, nominal_weight)
        learning_rate = self._state.learning_rate
        if has_applied:
            self._agree(total)
            progress.is_between_steps = True
        else:
            self._carry_out(verdict)
        self._tell(verdict, learning_rate)

    def following_roster(self) -> Roster | None:
        """The roster that a planned change puts in the place of this one now; None while nothing changes."""
        change = self._changes.agreed
        if change is None:
            return None
        if self._keeper.is_pending:
            self._num_postponed += 1
            if self._num_postponed < _MAX_POSTPONED:
                return None
            self._keeper.settle()
        self.settle()
        step = self.progress.step.num_applied
        batch_size, rate_factor = self._batches.begun_with(step) or (0, 0.0)
        none = StepNumbers(loss_sum=0.0, weight=0.0, square_sums=())
        numbers = structs.replace(self.progress.applied or none, batch_size=batch_size, rate_factor=rate_factor)
        return planned_roster(self._seat.roster, change, step, numbers)

    def apply_planned(self, numbers: StepNumbers) -> None:
        """Apply the step before a planned change, whose votes this member has not seen, but all others have."""
        votes = Vote(
            num_prepared=float(self._seat.roster.num_voters),
            num_finite=float(self._seat.roster.num_voters) if numbers.is_finite else 0.0,
            loss_sum=numbers.loss_sum,
            weight=numbers.weight,
            square_sums=numbers.square_sums,
        )
        votes = known_changes(votes, numbers)
        step = self.progress.step
        nominal_weight = self._runner.nominal_weight_of(self._samples.step_size(step.step))
        own = StageNumbers(votes.square_sum, votes.loss_sum, votes.loss_sum, votes.weight)
        self._carry_out(self._decide(step, own, votes, nominal_weight))

    def _judge(self, numbers: StageNumbers, step: StepState, nominal_weight: float) -> Verdict:
        """Vote on a step with the numbers of this member's stage, and return the verdict of all members."""
        seat = self._seat
        seat.confirm()
        vote = numbers.vote(self._ballot(), seat.stage, seat.roster.num_stages, is_first_replica=seat.replica == 0)
        return self._decide(step, numbers, Vote.of(seat.add_up(vote.values()), seat.roster.num_stages), nominal_weight)

    def _decide(self, step: StepState, numbers: StageNumbers, total: Vote, nominal_weight: float) -> Verdict:
        may_skip = self._job.autocast == "fp16" and self.progress.scale.factor > _MIN_SCALE
        decision = step.decide(total, self._seat.roster.num_voters, may_skip=may_skip)
        return Verdict(self._job, step.step, numbers, total, decision, nominal_weight)

    def _ballot(self) -> Vote:
        """The part of this member's vote that does not depend on the results of the step."""
        newest, ready = self._changes.ballot(self.progress.step.step)
        ballot = Vote(
            paces=self._paces(),
            newest_change=float(newest),
            ready_change=float(ready),
            num_saved=float(self._keeper.is_written()),
            num_due=float(self._keeper.is_due(self.progress.step.step + 1)),
            wishes=float(self.progress.agenda.noted.value),
            num_stops=float(self._callbacks.is_stop_asked()),
        )
        return self._batches.with_wants(ballot, self.progress.step, self.progress.scale.factor)

    def _paces(self) -> tuple[float, ...]:
        """The pace of this member's replica in the step before, if this member tells it; a GPU computes unseen."""
        roster = self._seat.roster
        paces = [0.0] * roster.num_replicas
        if self._seat.replica is not None and self._seat.stage == 0 and not self._uses_gpu:
            paces[self._seat.replica] = self._pace_s
        return tuple(paces)

    def _shares(self) -> tuple[int, ...]:
        """The number of grains of each replica in a step of the present batch size."""
        roster, step = self._seat.roster, self.progress.step.num_applied
        num_grains = -(-self._samples.batch_size_of(max(0, step - 1)) // self._samples.grain_size)
        return tuple(map(len, split_grains_of(roster, num_grains)))

    def _carry_out(self, verdict: Verdict) -> None:
        """Apply or skip the step, as all members have decided."""
        total, is_applied = verdict.total, verdict.decision is Decision.APPLY
        factor = verdict.gradient_factor(self.progress.scale.factor) if is_applied else None
        if self._job.autocast == "fp16":
            self.progress.scale = self.progress.scale.after(is_finite=is_applied)
        self._apply(factor, total)
        self.progress.applied = StepNumbers(
            loss_sum=finite(total.loss_sum),
            weight=finite(total.weight),
            square_sums=tuple(map(finite, total.square_sums)),
            is_finite=is_applied,
            batch_size=int(total.batch_size),
            rate_factor=total.rate_factor,
            first_square_sum=finite(total.first_square_sum),
            noise_square_sum=finite(total.noise_square_sum),
        )

    def _apply(self, factor: float | torch.Tensor | None, total: Vote) -> None:
        """Update the parameters from the held gradients times `factor`, or skip the step if it is None.

        `total` also says what all members have to do when the step ends.
        """
        if factor is None:
            self._state.advance()
        else:
            self._runner.apply(factor)
        self._batches.note(self.progress.step.step, total)
        self.progress.step = self.progress.step.apply()
        self.progress.is_between_steps = True
        self.progress.prepared = None
        self.progress.finished = None
        self._agree(total)
        if factor is not None:
            self._callbacks.show_weights(self.progress.step.num_applied)

    def _agree(self, total: Vote) -> None:
        """Note what the vote says besides the step itself."""
        self._changes.take(total)
        if len(total.paces) == self._seat.roster.num_replicas:
            self._changes.note_paces(total.paces, self._shares())
        if total.num_saved == self._seat.roster.num_voters:
            self._keeper.complete()
        self.progress.agenda = Agenda(
            agreed=Wish(int(total.wishes)),
            is_checkpoint_due=total.num_due > 0,
            is_stop_asked=total.num_stops > 0,
            batch=(int(total.batch_size), total.rate_factor) if total.batch_size else None,
        )

    def _tell(self, verdict: Verdict, learning_rate: float | None, start_s: float | None = None) -> None:
        self.progress.agenda.noted |= self._callbacks.tell(
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
