"""Batch sizes and learning-rate factors that change while a run trains, as the job's scaling policy wants them.

The first member asks the policy, and tells all others with its vote on the step before the change, or with the sums
that follow an evaluation. So all members change at the same step.
"""

import math
import time
from dataclasses import replace

from msgspec import structs

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.scaling import History, Wanted
from zooid.core.plans.plan import Plan
from zooid.core.runs.batch_history import BatchPiece, changed_from
from zooid.core.runs.events import BatchChanged, ScalingExpected, ScalingWanted
from zooid.core.runs.gradient_noise import first_grain_sizes
from zooid.core.runs.roster import StepNumbers
from zooid.schedule.foreseen_scaling import foreseen_replicas
from zooid.schedule.step_state import Phase, StepState, Vote
from zooid.schedule.succession import grains_of
from zooid.worker.member.callbacks import Callbacks
from zooid.worker.member.evaluation_history import is_evaluation_due
from zooid.worker.member.seat import Seat
from zooid.worker.state.stage_state import StageState

_NO_CHANGE = (0.0, 0.0)
_WANTED = ("batch_size", "rate_factor", "num_replicas")


def known_changes(total: Vote, numbers: StepNumbers) -> Vote:
    """The votes on a step that stands, with what the members know that have applied it.

    If nobody has, the first member's new vote says which batch size begins, and the noise of the step is not measured.
    """
    if numbers.batch_size is not None:
        total = replace(total, batch_size=numbers.batch_size, rate_factor=numbers.rate_factor)
    return replace(total, first_square_sum=numbers.first_square_sum, noise_square_sum=numbers.noise_square_sum)


class BatchChanges:
    """Asks the policy under one roster, and changes the state that outlives it."""

    def __init__(self, job: Job, plan: Plan, state: StageState, seat: Seat, callbacks: Callbacks) -> None:
        self._job = job
        self._policy = job.policy
        self._state = state
        self._seat = seat
        self._callbacks = callbacks
        self._keeps_single = plan.survives_losses and not plan.reproducible
        self._foreseen_from: int | None = None
        """The step from which this member has looked ahead under this roster; None before the first look."""

    def with_wants(self, ballot: Vote, step: StepState, loss_scale: float) -> Vote:
        """This member's vote on a step, with what the policy wants and the noise that it asks for.

        If an evaluation follows the step, the policy is asked after it.
        """
        if self._policy is None or step.phase is not Phase.PREPARED:
            return ballot
        next_step = step.step + 1
        is_asked_later = is_evaluation_due(self._job, self._state.samples, next_step)
        batch_size, rate_factor = _NO_CHANGE if is_asked_later else self.wanted_for(next_step)
        first_square, square = self._noise_squares(step.step) if self._policy.measures_noise else (0.0, 0.0)
        return replace(
            ballot,
            batch_size=batch_size,
            rate_factor=rate_factor,
            first_square_sum=first_square / loss_scale**2,
            noise_square_sum=square / loss_scale**2,
        )

    def note(self, step: int, total: Vote) -> None:
        """Note the gradient noise that the votes on an applied step have measured."""
        if self._policy is None or not self._policy.measures_noise:
            return
        sizes = [size for size in self._first_sizes(step) if size is not None]
        sums = (total.first_square_sum, total.noise_square_sum)
        if not sizes or not all(0 < each < math.inf for each in sums):
            return
        step_size, history = self._state.samples.step_size(step), self._state.history
        noise = history.ledger.noise.after(sums[0] / len(sizes), sizes, sums[1], step_size)
        history.ledger = structs.replace(history.ledger, noise=noise)

    def _noise_squares(self, step: int) -> tuple[float, float]:
        """Σg² of the mean gradients of this member's first grain, and of the step; 0 where others contribute it."""
        replica = self._seat.replica
        if replica is None:
            return 0.0, 0.0
        first_square, square = self._state.training.noise_squares()
        size = self._first_sizes(step)[replica]
        # The loss of a grain is divided by the samples of the whole step.
        factor = 0.0 if size is None else self._state.samples.step_size(step) / size
        return first_square * factor**2, square if replica == 0 else 0.0

    def _first_sizes(self, step: int) -> list[int | None]:
        """The size of each replica's first grain; None where its gradient cannot be measured in this step."""
        samples, roster = self._state.samples, self._seat.roster
        if roster.computed and step == roster.first_computed:  # sums of several grains were kept
            return [None] * roster.num_replicas
        grains = grains_of(roster, step, samples.num_grains(step))
        return first_grain_sizes(grains, samples.step_size(step), samples.grain_size, keeps_single=self._keeps_single)

    def wanted_for(self, step: int) -> tuple[float, float]:
        """Batch size and rate factor with which this step begins; zeros if they stay, and on all but one member."""
        samples, policy = self._state.samples, self._policy
        if policy is None or self._seat.rank != 0 or not 0 < step < samples.num_steps:
            return _NO_CHANGE
        if not self._is_due(step):
            return _NO_CHANGE
        history = self._history(step, changed_from(samples.batches, step, None))
        wanted = self._ask(history)
        batch_size = wanted.batch_size or history.batch_size
        rate_factor = wanted.rate_factor or history.rate_factor
        is_same = (batch_size, rate_factor) == (history.batch_size, history.rate_factor)
        return _NO_CHANGE if is_same else (float(batch_size), rate_factor)

    def foresee(self, step: int) -> None:
        """Tell the coordinator ahead how many replicas the policy will want, as far as that can be foreseen.

        This is done with the first step of a roster, and whenever the policy has been asked. Only one member does it.
        """
        policy, samples = self._policy, self._state.samples
        if policy is None or not policy.is_foreseeable or self._seat.rank != 0:
            return
        if self._foreseen_from is not None and (step == self._foreseen_from or not self._is_due(step)):
            return
        self._foreseen_from = step
        foreseen = foreseen_replicas(policy, samples, self._history(step, samples.batches))
        if foreseen is not None:
            self._callbacks.emit(ScalingExpected(at_s=time.time(), step=foreseen[0], num_replicas=foreseen[1]))

    def _is_due(self, step: int) -> bool:
        """Whether the policy is asked about this step."""
        assert self._policy is not None
        every_steps = self._policy.every_steps
        return step % every_steps == 0 if every_steps else self._state.samples.ends_epoch(step)

    def begun_with(self, step: int) -> tuple[int, float] | None:
        """Batch size and rate factor that begin with this step; None if they stay."""
        batches = self._state.samples.batches
        if not batches or batches[-1].first_step != step:
            return None
        return batches[-1].batch_size, batches[-1].rate_factor

    def begin(self, step: int, batch: tuple[int, float] | None) -> None:
        """Begin a piece of history with this step, or none. Doing it again, as after a lost member, changes nothing."""
        state = self._state
        batches = changed_from(state.samples.batches, step, batch)
        if batches != state.samples.batches:
            state.samples.follow(batches)
            state.training.rate_factor = batches[-1].rate_factor if batches else 1.0
            state.training.make_room(state.samples.max_grains)
            state.history.ledger = structs.replace(state.history.ledger, batches=batches)
        if batch is not None:
            batch_size, rate_factor = batch
            self._callbacks.tell_change(
                BatchChanged(
                    at_s=time.time(),
                    step=step,
                    batch_size=batch_size,
                    rate_factor=rate_factor,
                    num_steps=state.samples.num_steps,
                )
            )

    def _history(self, step: int, batches: tuple[BatchPiece, ...]) -> History:
        """What the policy is told about the run before this step, with these pieces after the first."""
        state = self._state
        first = BatchPiece(first_step=0, batch_size=state.samples.batch_size)
        return History(
            step=step,
            epoch=state.samples.epoch_of(step),
            batches=(first, *batches),
            losses=tuple(state.log.losses),
            step_s=tuple(state.log.step_s),
            evaluations=state.history.ledger.evaluations,
            num_replicas=self._seat.roster.num_replicas,
            noise_scale=state.history.ledger.noise.scale,
        )

    def _ask(self, history: History) -> Wanted:
        """The answer of the policy, which is asked once for each step."""
        log, num_samples = self._state.log, self._state.samples.num_samples
        if log.answer is not None and log.answer[0] == history.step:
            return log.answer[1]
        assert self._policy is not None
        wanted = self._policy.ask(history)
        if wanted.batch_size is not None and wanted.batch_size > num_samples:
            raise JobError(
                f"job.scaling wants batches of {wanted.batch_size} samples from step {history.step} on, but an epoch "
                f"has only {num_samples}; let it want at most {num_samples}"
            )
        log.answer = (history.step, wanted)
        if any(getattr(wanted, name) not in (None, getattr(history, name)) for name in _WANTED):
            self._callbacks.emit(
                ScalingWanted(
                    at_s=time.time(),
                    step=history.step,
                    batch_size=wanted.batch_size,
                    rate_factor=wanted.rate_factor,
                    num_replicas=wanted.num_replicas,
                )
            )
        return wanted
