"""The numbers that a member contributes to the vote on a step."""

import math
from dataclasses import dataclass, replace

import torch

from zooid.schedule.step_state import Vote


def finite(number: float) -> float:
    """The number, or 0 if it is not finite: records have finite numbers only."""
    return number if math.isfinite(number) else 0.0


@dataclass(frozen=True)
class StageNumbers:
    """What one stage found in a step. All of its replicas find the same, but for their own losses."""

    square_sum: float
    """Σg² of the unscaled gradients of the summed loss over the nominal weight. It is finite if all gradients are."""
    own_loss_sum: float
    """Sum of the losses of this member's own grains; 0 on a stage that is not the last."""
    loss_sum: float
    """Sum of the losses of all replicas; 0 on a stage that is not the last."""
    weight: float
    """What `loss_sum` is divided by to give the mean loss; 0 on a stage that is not the last."""

    @staticmethod
    def room() -> torch.Tensor:
        """Room for `values`."""
        return torch.zeros(3, dtype=torch.float64)

    def values(self) -> torch.Tensor:
        """What all who have this stage know alike."""
        return torch.tensor([self.square_sum, self.loss_sum, self.weight], dtype=torch.float64)

    @classmethod
    def of(cls, values: torch.Tensor) -> "StageNumbers":
        """The numbers of a member that has no grains of its own."""
        square_sum, loss_sum, weight = values.tolist()
        return cls(square_sum, 0.0, loss_sum, weight)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.own_loss_sum) and math.isfinite(self.square_sum)

    def vote(self, ballot: Vote, stage: int, num_stages: int, *, is_first_replica: bool) -> Vote:
        """The ballot, completed by these numbers. Only the first replica contributes what all replicas have."""
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
        )
