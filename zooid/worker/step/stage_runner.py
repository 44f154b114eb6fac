"""The actions of a step on this member: it computes on its stage, and exchanges values with its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from zooid.layers import Batch, Objective, Stage, autocasting, grain_randomness
from zooid.schedule.actions import Action, Kind
from zooid.worker.gradients.loss_sums import NUM_SUMS, total
from zooid.worker.member.seat import Seat
from zooid.worker.samples.sample_reader import ReadGrain
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.cut_messages import CutMessages, select
from zooid.worker.step.given_gradients import backward_from
from zooid.worker.step.pending import Pending


@dataclass
class _Grain:
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


@dataclass(frozen=True)
class FinishedGrains:
    """A member's part of a step that its pipeline has computed, but that could not be reduced or committed.

    The member's state holds the sums of gradients and of changes of statistics.
    """

    step: int
    grains: tuple[int, ...]
    """All grains that the member's replica had when it computed the last of them."""
    losses: torch.Tensor
    """The loss and the weight of every grain of the step; 0 for grains of others."""
    weights: tuple[float, ...]


class StageRunner:
    """Runs the actions of one step at a time, after `begin_step`."""

    def __init__(
        self,
        objective: Objective,
        read: ReadGrain,
        stage: Stage,
        state: TrainingState,
        seat: Seat,
        device: torch.device,
    ) -> None:
        self._job = objective.job
        self._objective = objective
        self._read = read
        self._stage = stage
        self._state = state
        self._seat = seat
        self._device = device
        self._messages = CutMessages(stage, seat, device, "train")
        self._step = 0
        self._num_samples = 0
        self._own_grains: tuple[int, ...] = ()
        self._num_backwards_left = 0
        self._scale = LossScale()
        self._grains: dict[int, _Grain] = {}
        self._losses: torch.Tensor = torch.zeros(0, NUM_SUMS)
        """The loss and the weight of every grain of the step; 0 for grains of others."""
        self._weights: list[float] = []

    def begin_step(
        self,
        step: int,
        indices: Sequence[npt.NDArray[np.int64]],
        grains: Sequence[Sequence[int]],
        scale: LossScale,
        *,
        finished: FinishedGrains | None = None,
        num_finished: int = 0,
    ) -> None:
        """Begin a step, given the samples of all its grains, and the grains of every replica.

        `finished` is what this member has computed of the step before, and `num_finished` the number of its grains.
        """
        assert self._seat.replica is not None, "copies run no grains"
        self._step = step
        self._num_samples = sum(map(len, indices))
        self._own_grains = tuple(grains[self._seat.replica])
        self._num_backwards_left = len(self._own_grains) - num_finished
        self._scale = scale
        self._grains.clear()
        self._messages.begin_step([len(samples) for samples in indices])
        self._losses = torch.zeros(len(indices), NUM_SUMS, dtype=torch.float64, device=self._device)
        self._weights = [0.0] * len(indices)
        if finished is None:
            self._state.begin(grains)
        else:
            self._losses.copy_(finished.losses)
            self._weights = list(finished.weights)
            self._state.continue_step(grains)

    @property
    def nominal_weight(self) -> float:
        """Divisor of the gradients while they are computed, equal on every member."""
        return self.nominal_weight_of(self._num_samples)

    def nominal_weight_of(self, num_samples: int) -> float:
        """The nominal weight of a step of so many samples."""
        return self._objective.form.nominal_weight(num_samples)

    @property
    def weight(self) -> float:
        """The weight of the samples of this member's grains."""
        return float(total(torch.tensor(self._weights, dtype=torch.float64)))

    def count(self) -> torch.Tensor:
        """Four numbers of a step whose gradients are reduced.

        They are Σg² of the gradients of scaled losses, this member's summed loss, and the sums of losses and of weights
        over all replicas.
        """
        square_sum = self._state.square_sum().to(self._device)
        own_sum = total(self._losses)[0]
        return torch.cat([torch.stack([square_sum, own_sum]), self._state.loss_totals(self._losses)])

    def finished(self) -> FinishedGrains:
        """This member's part of the step, when all of its grains are computed."""
        return FinishedGrains(self._step, self._own_grains, self._losses, tuple(self._weights))

    def apply(self, factor: float | torch.Tensor) -> None:
        """Update the parameters from the held gradients times `factor`."""
        self._state.apply(factor)

    def drop(self) -> None:
        """Forget the step, here and in the state."""
        self._grains.clear()
        self._messages.begin_step(())
        self._state.drop()

    def compute(self, action: Action) -> None:
        if action.kind is Kind.FORWARD:
            self._forward(_number(action))
        else:
            assert action.kind is Kind.BACKWARD
            self._backward(_number(action))

    def begin(self, action: Action) -> Pending:
        number = _number(action)
        match action.kind:
            case Kind.SEND_FORWARD:
                return self._messages.send(action.kind, number, self._grains[number].outputs)
            case Kind.SEND_BACKWARD:
                inputs = select(self._grains.pop(number).inputs, self._stage.differentiable_inputs)
                gradients = [value.grad if value.grad is not None else torch.zeros_like(value) for value in inputs]
                return self._messages.send(action.kind, number, gradients)
            case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
                return self._messages.receive(action.kind, number)
            case Kind.REDUCE:
                return Pending(self._state.reduce(number, self._losses))
            case Kind.SHARE:
                tied_sum = self._state.sum_tied(number)
                return Pending(tied_sum.works, tied_sum.finish)
            case _:
                raise AssertionError(f"{action} is not begun but computed")

    def _forward(self, grain: int) -> None:
        is_first, is_last = self._stage.first_layer == 0, self._stage.is_last
        samples = self._read(self._step, grain) if is_first or is_last else None
        batch = samples.to(self._device) if samples is not None else None
        if is_first:
            assert batch is not None
            inputs = self._stage.inputs_of(batch)
        else:
            inputs = self._messages.take(Kind.RECEIVE_FORWARD, grain)
            for value, differentiable in zip(inputs, self._stage.differentiable_inputs, strict=True):
                value.requires_grad_(differentiable)
        with autocasting(self._job.autocast, self._device):
            with grain_randomness(self._job.seed, self._step, grain):
                self._state.begin_grain()
                outputs = list(self._stage.run(*inputs))
                self._state.end_grain(grain)
            if is_last:
                assert samples is not None
                assert batch is not None
                outputs = [self._loss(grain, outputs, batch, self._objective.weight(samples, self._num_samples))]
        self._grains[grain] = _Grain(inputs, outputs)

    def _loss(self, grain: int, values: list[torch.Tensor], batch: Batch, weight: float) -> torch.Tensor:
        """The loss of a grain over the step's nominal weight.

        The true weight is known only when all grains are computed, so the apply corrects for it. Where both are equal,
        hooks see the gradient of the step's loss.
        """
        output = self._stage.model_output(tuple(values))
        loss_sum, weight = self._objective.sum_and_weight(output, batch.target, weight)
        self._losses[grain, 0] = loss_sum.detach()
        self._losses[grain, 1] = weight
        self._weights[grain] = weight
        return loss_sum * (self._scale.factor / self.nominal_weight)

    def _backward(self, number: int) -> None:
        grain = self._grains[number]
        self._num_backwards_left -= 1
        self._state.begin_backward(number, is_last=self._num_backwards_left == 0)
        if self._stage.is_last:
            torch.autograd.backward(grain.outputs)
        else:
            gradients = self._messages.take(Kind.RECEIVE_BACKWARD, number)
            outputs = select(grain.outputs, self._stage.differentiable_outputs)
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
            backward_from([o for o, _ in pairs], [g for _, g in pairs])
        self._state.end_backward(number)
        grain.outputs = []
        if self._stage.first_layer == 0:
            del self._grains[number]


def _number(action: Action) -> int:
    assert action.number is not None
    return action.number
