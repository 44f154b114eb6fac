"""What the steps of a member need of the stage that computes, and of the state that a step changes.

A trained stage and a rehearsed one are the two implementations. So both run the same steps, votes and rosters.
"""

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.step.executor import Actor

if TYPE_CHECKING:
    from zooid.worker.gradients.bucket_gradients import ReplicaReduction
    from zooid.worker.gradients.tied_gradients import TiedParameters
    from zooid.worker.step.stage_runner import FinishedGrains


class StepRunner(Actor, Protocol):
    """Performs the actions of one step at a time, and holds its results until they are applied or dropped."""

    def begin_step(
        self,
        step: int,
        indices: Sequence[npt.NDArray[np.int64]],
        grains: Sequence[Sequence[int]],
        scale: LossScale,
        *,
        finished: "FinishedGrains | None" = None,
        num_finished: int = 0,
    ) -> None:
        """Begin a step, given the samples of all its grains, and the grains of every replica."""

    @property
    def nominal_weight(self) -> float:
        """Divisor of the gradients while they are computed, equal on every member."""

    def nominal_weight_of(self, num_samples: int) -> float:
        """The nominal weight of a step of so many samples."""

    @property
    def weight(self) -> float:
        """The weight of the samples of this member's grains."""

    def count(self) -> torch.Tensor:
        """Σg², this member's summed loss, and the sums of losses and weights over all replicas."""

    def finished(self) -> "FinishedGrains":
        """This member's part of the step, when all of its grains are computed."""

    def apply(self, factor: float | torch.Tensor) -> None:
        """Update the parameters from the held gradients times `factor`."""

    def drop(self) -> None:
        """Forget the step."""


class TrainedState(Protocol):
    """The state that steps change."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer; None where nothing is trained."""

    @property
    def named_parameters(self) -> Sequence[tuple[str, torch.nn.Parameter]]: ...

    rate_factor: float
    """Factor on the learning rate of the optimizer and its scheduler."""

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group; None where nothing is trained."""

    def regroup(self, reduction: "ReplicaReduction", ties: "dict[int, TiedParameters] | None" = None) -> None:
        """Reduce gradients with other replicas from now on."""

    def make_room(self, num_grains: int) -> None:
        """Prepare for steps of at most so many grains."""

    def noise_squares(self) -> tuple[float, float]:
        """Σg² of this member's first grain and of the held gradients, for the gradient noise scale."""

    def follow(self, evaluated: float) -> None:
        """Step a scheduler that follows evaluation results."""

    def begin(self, grains: Sequence[Sequence[int]]) -> None:
        """Begin a step, given the grains of every replica."""

    def advance(self) -> None:
        """Change what a step changes besides the parameters."""

    def drop(self) -> None:
        """Forget the step, as if it had never begun."""

    def held_parts(self) -> list[torch.Tensor]:
        """Everything needed to apply a prepared step, or tensors of the same shapes."""

    def held_parts_of(self, names: Container[str]) -> list[torch.Tensor]:
        """The part of `held_parts` that belongs to these names."""

    def take_held_of(self, names: Container[str], parts: Sequence[torch.Tensor]) -> None:
        """Hold the parts for these names that another member has handed over."""

    def take_held(self, parts: Sequence[torch.Tensor]) -> None:
        """Hold the parts that another replica has handed over."""
