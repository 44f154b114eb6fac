"""The vote on a step: the numbers that a stage contributes, and the verdict that follows from all of them."""

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from zooid.core.errors import CommAborted, TrainingError
from zooid.core.jobs.job import Job
from zooid.schedule.step_state import Decision, StepState, Vote

_NORM_OFFSET = 1e-6
"""Added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does."""

Number = TypeVar("Number", float, torch.Tensor)


def finite(number: float) -> float:
    """The number, or 0 if it is not finite: records have finite numbers only."""
    return number if math.isfinite(number) else 0.0


@dataclass(frozen=True)
class StageNumbers:
    """Results of a step at one stage. They are equal on all its replicas, except for `own_loss_sum`."""

    square_sum: float
    """Σg² of the unscaled gradients of the summed loss over the nominal weight. It is finite if all gradients are."""
    own_loss_sum: float
    """Sum of the losses of this member's own grains; 0 on a stage that is not the last."""
    loss_sum: float
    """Sum of the losses of all replicas; 0 on a stage that is not the last."""
    weight: float
    """Divisor of `loss_sum` that gives the mean loss; 0 on a stage that is not the last."""

    @staticmethod
    def empty_values() -> torch.Tensor:
        """A tensor of the shape of `values`."""
        return torch.zeros(3, dtype=torch.float64)

    def values(self) -> torch.Tensor:
        """The numbers that are equal on all replicas of the stage."""
        return torch.tensor([self.square_sum, self.loss_sum, self.weight], dtype=torch.float64)

    @classmethod
    def of(cls, values: torch.Tensor) -> "StageNumbers":
        """The numbers of a member that computes no grains."""
        square_sum, loss_sum, weight = values.tolist()
        return cls(square_sum, 0.0, loss_sum, weight)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.own_loss_sum) and math.isfinite(self.square_sum)

    def vote(self, ballot: Vote, stage: int, num_stages: int, *, is_first_replica: bool) -> Vote:
        """The ballot with these numbers. Only the first replica contributes what all replicas have."""
        square_sums = [0.0] * num_stages
        if is_first_replica:
            square_sums[stage] = self.square_sum
        return replace(
            ballot,
            num_prepared=1.0,
            num_finite=float(self.is_finite),
            loss_sum=self.loss_sum if is_first_replica else 0.0,
            weight=self.weight if is_first_replica else 0.0,
            square_sums=tuple(square_sums),
            paces=ballot.paces,
        )


@dataclass
class StepCounts:
    """Σg² and losses of a step whose gradients are reduced. A GPU may still be computing them."""

    step: StepState
    numbers: torch.Tensor
    """The four numbers of `StageRunner.count`."""
    weight: float
    """The weight of the samples of this member's grains."""
    nominal_weight: float
    learning_rate: float | None
    start_s: float

    def __post_init__(self) -> None:
        self._host_numbers = self.numbers
        self._event: torch.cuda.Event | None = None
        if self.numbers.is_cuda:
            self._host_numbers = torch.empty_like(self.numbers, device="cpu", pin_memory=True)
            self._host_numbers.copy_(self.numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self, loss_scale: float) -> StageNumbers:
        """The numbers of this member's stage. Waits until a GPU has computed them."""
        if self._event is not None:
            self._event.synchronize()
        square_sum, own_loss_sum, loss_sum, weight = self._host_numbers.tolist()
        return StageNumbers(square_sum / loss_scale**2, own_loss_sum, loss_sum, weight)

    def gradient_factor(self, job: Job) -> float | torch.Tensor:
        """The factor of `Verdict.gradient_factor`, without waiting, on a lone member that scales no losses."""
        factor = self.nominal_weight / self.weight
        if job.clip_norm is None:
            return factor
        norm = self.numbers[0].sqrt() * self.nominal_weight / self.weight
        return torch.where(norm > job.clip_norm, _clip_factor(job.clip_norm, norm) * factor, factor)


@dataclass(frozen=True)
class Verdict:
    """The decision of all members about a step. It is equal on every member, except for `own_numbers`."""

    job: Job
    step: int
    own_numbers: StageNumbers
    """The numbers of this member's own stage."""
    total: Vote
    """The sum of all votes."""
    decision: Decision
    nominal_weight: float
    """Divisor of the gradients when they were computed."""

    @property
    def loss(self) -> float:
        return self.total.loss_sum / self.total.weight

    @property
    def norm(self) -> float:
        """Norm of the gradient of the step's mean loss; 0 for a step that is not applied."""
        if self.decision is not Decision.APPLY:
            return 0.0
        return math.sqrt(self.total.square_sum) * self.nominal_weight / self.total.weight

    def gradient_factor(self, loss_scale: float) -> float:
        """Factor that turns held gradients into those of the mean loss, and clips them.

        Held gradients are those of scaled losses, divided by the nominal weight.
        """
        factor = self.nominal_weight / self.total.weight / loss_scale
        if self.job.clip_norm is not None and self.norm > self.job.clip_norm:
            factor *= _clip_factor(self.job.clip_norm, self.norm)
        return factor

    def error(self, member: str) -> Exception:
        """The error to raise for a dropped step. The member that caused the drop names the cause, others abort."""
        kept = "nothing of it was kept, and the last checkpoint is untouched"
        if not self.total.weight > 0:
            return TrainingError(
                f"the samples of step {self.step} have a total weight of {self.total.weight:g}; {kept}: the weights "
                "that job.loss returns must sum to more than 0"
            )
        if not math.isfinite(self.own_numbers.own_loss_sum):
            return TrainingError(
                f"member {member} found a loss that is not finite in step {self.step} (sum over its samples "
                f"{self.own_numbers.own_loss_sum:g}); {kept}: lower the learning rate or look at the data"
            )
        if math.isfinite(self.total.loss_sum) and not math.isfinite(self.own_numbers.square_sum):
            return TrainingError(
                f"member {member} found gradients that are not finite in step {self.step}, although the loss is; "
                f"{kept}: lower the learning rate, set job.clip_norm, or look for a square root or logarithm at 0"
            )
        return CommAborted(f"step {self.step} was dropped, since another member found numbers that are not finite")


def _clip_factor(clip_norm: float, norm: Number) -> Number:
    """The factor that reduces gradients of this norm to the allowed norm."""
    return clip_norm / (norm + _NORM_OFFSET)
