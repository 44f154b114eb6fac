"""What the actions of a step do on this member: compute on its stage, and pass values to its neighbours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zooid.layers import Batch, Objective, Stage, autocasting, grain_randomness
from zooid.schedule.actions import Action, Kind
from zooid.worker.member.seat import Messenger, Seat
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.cut_messages import Boundary
from zooid.worker.step.loss_sums import NUM_SUMS, total
from zooid.worker.step.pending import Underway

Indices = Sequence[npt.NDArray[np.int64]]
"""Of the samples of every grain of a step."""
Read = Callable[[int, int], Batch]
"""(step, grain) -> its samples."""


@dataclass
class _Grain:
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


@dataclass(frozen=True)
class Finished:
    """A member's part of a step that its whole pipeline has computed, but that could not be reduced or committed.

    The sums of gradients and changes of statistics are in its state.
    """

    step: int
    grains: tuple[int, ...]
    """All grains of the member's replica under the roster that it computed the last of them for."""
    losses: torch.Tensor
    """The loss and the weight of every grain of the step; 0 for those of others."""
    weights: tuple[float, ...]


class StageRunner:
    """Runs one step at a time: `begin`, then the actions, then `vote`."""

    def __init__(
        self,
        objective: Objective,
        read: Read,
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
        self._messenger = Messenger(seat)
        crossing_in = stage.model.values_into(stage.first_layer) if stage.first_layer > 0 else ()
        crossing_out = () if stage.is_last else stage.model.values_into(stage.end_layer)
        self._into = {
            Kind.RECEIVE_FORWARD: Boundary(crossing_in, self._device),
            Kind.RECEIVE_BACKWARD: Boundary(_where(crossing_out, stage.differentiable_outputs), self._device),
        }
        self._out_of = {
            Kind.SEND_FORWARD: Boundary(crossing_out, self._device),
            Kind.SEND_BACKWARD: Boundary(
                _where(crossing_in, stage.differentiable_inputs) if crossing_in else (), self._device
            ),
        }
        self._step = 0
        self._num_samples: list[int] = []
        self._own_grains: tuple[int, ...] = ()
        self._num_backwards_left = 0
        self._scale = LossScale()
        self._grains: dict[int, _Grain] = {}
        self._messages: dict[tuple[Kind, int], torch.Tensor] = {}
        self._losses: torch.Tensor = torch.zeros(0, NUM_SUMS)
        """The loss and the weight of every grain of the step; 0 for those of others."""
        self._weights: list[float] = []

    def begin_step(
        self,
        step: int,
        indices: Indices,
        grains: Sequence[Sequence[int]],
        scale: LossScale,
        *,
        finished: Finished | None = None,
        num_finished: int = 0,
    ) -> None:
        """Start a step, given the samples of all of its grains, and which of them each replica has.

        `finished` is given where this member has computed some of its grains before, and how many.
        """
        self._step = step
        self._num_samples = [len(own) for own in indices]
        assert self._seat.replica is not None, "copies run no grains"
        self._own_grains = tuple(grains[self._seat.replica])
        self._num_backwards_left = len(self._own_grains) - num_finished
        self._scale = scale
        self._grains.clear()
        self._messages.clear()
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
        """What gradients are divided by while they are computed; the same on every member."""
        return self.nominal_weight_of(sum(self._num_samples))

    def nominal_weight_of(self, num_samples: int) -> float:
        """The same for a step of so many samples."""
        return self._objective.form.nominal_weight(num_samples)

    @property
    def weight(self) -> float:
        """The weight of the samples of this member's grains."""
        return float(total(torch.tensor(self._weights, dtype=torch.float64)))

    def count(self) -> torch.Tensor:
        """What is known of the step once its gradients are reduced.

        These are Σg² of the gradients of scaled losses, this member's summed loss, and the sums of losses and weights
        over all replicas.
        """
        square_sum = self._state.square_sum().to(self._device)
        own_sum = total(self._losses)[0]
        return torch.cat([torch.stack([square_sum, own_sum]), self._state.losses(self._losses)])

    def finished(self) -> Finished:
        """What this member has computed of the step, when all of its grains are done."""
        return Finished(self._step, self._own_grains, self._losses, tuple(self._weights))

    def drop(self) -> None:
        """Nothing of the step remains, here or in the state."""
        self._grains.clear()
        self._messages.clear()
        self._state.drop()

    def compute(self, action: Action) -> None:
        if action.kind is Kind.FORWARD:
            self._forward(_number(action))
        else:
            assert action.kind is Kind.BACKWARD
            self._backward(_number(action))

    def begin(self, action: Action) -> Underway:
        match action.kind:
            case Kind.SEND_FORWARD | Kind.SEND_BACKWARD:
                return self._messenger.send(action.kind, _number(action), self._message(action.kind, _number(action)))
            case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
                message = self._into[action.kind].empty(self._num_samples[_number(action)])
                self._messages[action.kind, _number(action)] = message
                return self._messenger.receive(action.kind, _number(action), message)
            case Kind.REDUCE:
                return Underway(self._state.reduce(_number(action), self._losses))
            case Kind.SHARE:
                sharing = self._state.share(_number(action))
                return Underway(sharing.works, sharing.finish)
            case _:
                raise AssertionError(f"{action} is not begun but computed")

    def _forward(self, grain: int) -> None:
        is_first, is_last = self._stage.first_layer == 0, self._stage.is_last
        read = self._read(self._step, grain) if is_first or is_last else None
        batch = read.to(self._device) if read is not None else None
        if is_first:
            assert batch is not None
            inputs = self._stage.inputs_of(batch)
        else:
            inputs = self._received(Kind.RECEIVE_FORWARD, grain)
            for value, differentiable in zip(inputs, self._stage.differentiable_inputs, strict=True):
                value.requires_grad_(differentiable)
        with autocasting(self._job.autocast, self._device):
            with grain_randomness(self._job.seed, self._step, grain):
                self._state.begin_grain()
                outputs = list(self._stage.run(*inputs))
                self._state.end_grain(grain)
            if is_last:
                assert read is not None
                assert batch is not None
                outputs = [self._loss(grain, outputs, batch, self._objective.weight(read, sum(self._num_samples)))]
        self._grains[grain] = _Grain(inputs, outputs)

    def _loss(self, grain: int, values: list[torch.Tensor], batch: Batch, weight: float) -> torch.Tensor:
        """Gradients are divided by the step's nominal weight here; the apply corrects for the true one, which nobody
        knows before all grains are computed. Where the two are equal, hooks see the gradient of the step's loss."""
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
            gradients = self._received(Kind.RECEIVE_BACKWARD, number)
            outputs = _where(grain.outputs, self._stage.differentiable_outputs)
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        self._state.end_backward(number)
        grain.outputs = []
        if self._stage.first_layer == 0:
            del self._grains[number]

    def _received(self, kind: Kind, grain: int) -> list[torch.Tensor]:
        return self._into[kind].unpack(self._messages.pop((kind, grain)), self._num_samples[grain])

    def _message(self, kind: Kind, grain: int) -> torch.Tensor:
        if kind is Kind.SEND_FORWARD:
            return self._out_of[kind].pack(self._grains[grain].outputs)
        inputs = _where(self._grains.pop(grain).inputs, self._stage.differentiable_inputs)
        gradients = [value.grad if value.grad is not None else torch.zeros_like(value) for value in inputs]
        return self._out_of[kind].pack(gradients)


def _number(action: Action) -> int:
    assert action.number is not None
    return action.number


def _where(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, flags, strict=True) if flag]
