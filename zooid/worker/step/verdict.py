"""What the votes on a step say: whether it is applied, with which factor, and if not, why."""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch

from zooid.core.errors import CommAborted, TrainingError
from zooid.core.jobs.job import Job
from zooid.schedule.step_state import Decision, Vote
from zooid.worker.step.vote_numbers import StageNumbers

_TINY = 1e-6
"""Added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does."""


Number = TypeVar("Number", float, torch.Tensor)


def clip_factor(clip_norm: float, norm: Number) -> Number:
    """What brings gradients of this norm to the norm that is allowed."""
    return clip_norm / (norm + _TINY)


@dataclass(frozen=True)
class Verdict:
    """The same on every member, but for its own vote."""

    job: Job
    step: int
    own: StageNumbers
    total: Vote
    decision: Decision
    nominal_weight: float
    """What the gradients were divided by when they were computed."""

    @property
    def loss(self) -> float:
        return self.total.loss_sum / self.total.weight

    @property
    def norm(self) -> float:
        """Of the gradient of the mean loss over the step; 0 where it is not to be applied."""
        if self.decision is not Decision.APPLY:
            return 0.0
        return math.sqrt(self.total.square_sum) * self.nominal_weight / self.total.weight

    def scale(self, loss_scale: float) -> float:
        """For gradients that are of scaled losses, and divided by the nominal weight; clipping comes on top."""
        scale = self.nominal_weight / self.total.weight / loss_scale
        if self.job.clip_norm is not None and self.norm > self.job.clip_norm:
            scale *= clip_factor(self.job.clip_norm, self.norm)
        return scale

    def refusal(self, member: str) -> Exception:
        """The member whose own loss is not finite is the cause; where all losses are, the one with such gradients."""
        rest = "nothing of it was kept, and the last checkpoint is untouched"
        if not self.total.weight > 0:
            return TrainingError(
                f"the samples of step {self.step} weigh {self.total.weight:g} together; {rest}: the weights that "
                "job.loss returns must sum to more than 0"
            )
        if not math.isfinite(self.own.own_loss_sum):
            return TrainingError(
                f"member {member} found a loss that is not finite in step {self.step} (sum over its samples "
                f"{self.own.own_loss_sum:g}); {rest}: lower the learning rate or look at the data"
            )
        if math.isfinite(self.total.loss_sum) and not math.isfinite(self.own.square_sum):
            return TrainingError(
                f"member {member} found gradients that are not finite in step {self.step}, although the loss is; "
                f"{rest}: lower the learning rate, set job.clip_norm, or look for a square root or logarithm at 0"
            )
        return CommAborted(f"step {self.step} was dropped, since another member found numbers that are not finite")
