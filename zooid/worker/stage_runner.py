"""What the actions of a step do on this member: compute on its stage, and pass values to its neighbours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist

from zooid.core.job import Job
from zooid.core.roster import Roster
from zooid.layers import Batch, Stage, collate, flatten_inputs, grain_randomness, loss_sum_and_weight, seed_data
from zooid.schedule.actions import Action, Kind
from zooid.schedule.steps import Vote
from zooid.worker.boundary import Boundary
from zooid.worker.executor import Handler
from zooid.worker.state import TrainingState


@dataclass(frozen=True)
class Seat:
    """Where a member sits, and through which groups it reaches the others."""

    roster: Roster
    rank: int
    replica: int
    stage: int
    stage_group: dist.ProcessGroup | None
    """The replicas of this stage; None where this is the only one."""

    def neighbour(self, distance: int) -> int:
        """Rank of the member that many stages on, in the same replica."""
        return self.roster.rank_at(self.replica, self.stage + distance)


@dataclass
class _Grain:
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


class StageRunner:
    """Runs one step at a time: `begin`, then the actions, then `vote`."""

    def __init__(self, job: Job, data: Any, stage: Stage, state: TrainingState, seat: Seat) -> None:
        self._job = job
        self._data = data
        self._stage = stage
        self._state = state
        self._seat = seat
        crossing_in = stage.model.values_into(stage.first_layer) if stage.first_layer > 0 else ()
        crossing_out = () if stage.is_last else stage.model.values_into(stage.end_layer)
        self._values_in = Boundary(crossing_in)
        self._values_out = Boundary(crossing_out)
        self._gradients_in = Boundary(_where(crossing_out, stage.differentiable_outputs))
        self._gradients_out = Boundary(_where(crossing_in, stage.differentiable_inputs) if crossing_in else ())
        self._step = 0
        self._indices: Sequence[npt.NDArray[np.int64]] = ()
        self._grains: dict[int, _Grain] = {}
        self._received: dict[tuple[Kind, int], list[torch.Tensor]] = {}
        self._loss_sum = 0.0
        self._weight = 0.0

    @property
    def handlers(self) -> Mapping[Kind, Handler]:
        return {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.SEND_FORWARD: self._send_forward,
            Kind.RECEIVE_FORWARD: self._receive_forward,
            Kind.SEND_BACKWARD: self._send_backward,
            Kind.RECEIVE_BACKWARD: self._receive_backward,
            Kind.REDUCE: lambda action: self._state.reduce(self._seat.stage_group),
        }

    def begin(self, step: int, indices: Sequence[npt.NDArray[np.int64]]) -> None:
        """Start a step, given the sample indices of all of its grains."""
        self._step = step
        self._indices = indices
        self._grains.clear()
        self._received.clear()
        self._loss_sum = 0.0
        self._weight = 0.0
        self._state.begin()

    def vote(self) -> Vote:
        """This member's contribution to the commit of a step whose gradients are reduced."""
        square_sum = self._state.square_sum()
        return Vote(
            num_prepared=1.0,
            num_finite=float(math.isfinite(square_sum) and math.isfinite(self._loss_sum)),
            loss_sum=self._loss_sum,
            weight=self._weight,
            gradient_square_sum=square_sum if self._seat.replica == 0 else 0.0,
        )

    def _forward(self, action: Action) -> None:
        grain = _grain(action)
        batch = self._read(grain) if self._needs_data else None
        if self._stage.first_layer == 0:
            assert batch is not None
            inputs = flatten_inputs(batch)
        else:
            inputs = self._received.pop((Kind.RECEIVE_FORWARD, grain))
            for value, differentiable in zip(inputs, self._stage.differentiable_inputs, strict=True):
                value.requires_grad_(differentiable)
        with grain_randomness(self._job.seed, self._step, grain):
            outputs = list(self._stage.module(*inputs))
        if self._stage.is_last:
            assert batch is not None
            outputs = [self._loss(outputs, batch)]
        self._grains[grain] = _Grain(inputs, outputs)

    def _read(self, grain: int) -> Batch:
        seed_data(self._job.seed, self._step, grain)
        return collate(self._data, self._indices[grain])

    def _loss(self, values: list[torch.Tensor], batch: Batch) -> torch.Tensor:
        """Gradients are scaled by the nominal batch size here; the apply corrects for the true weight of the step."""
        output = self._stage.model_output(tuple(values))
        total, weight = loss_sum_and_weight(self._job, output, batch.target, batch.num_samples)
        self._loss_sum += float(total.detach())
        self._weight += weight
        return total / self._job.batch_size

    def _backward(self, action: Action) -> None:
        grain = self._grains[_grain(action)]
        if self._stage.is_last:
            torch.autograd.backward(grain.outputs)
        else:
            gradients = self._received.pop((Kind.RECEIVE_BACKWARD, _grain(action)))
            outputs = _where(grain.outputs, self._stage.differentiable_outputs)
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        grain.outputs = []

    def _send_forward(self, action: Action) -> None:
        outputs = self._grains[_grain(action)].outputs
        _send(self._values_out.pack(outputs), self._seat.neighbour(1), _grain(action))

    def _receive_forward(self, action: Action) -> None:
        self._received[action.kind, _grain(action)] = self._receive(self._values_in, self._seat.neighbour(-1), action)

    def _send_backward(self, action: Action) -> None:
        inputs = _where(self._grains.pop(_grain(action)).inputs, self._stage.differentiable_inputs)
        gradients = [value.grad if value.grad is not None else torch.zeros_like(value) for value in inputs]
        _send(self._gradients_out.pack(gradients), self._seat.neighbour(-1), _grain(action))

    def _receive_backward(self, action: Action) -> None:
        self._received[action.kind, _grain(action)] = self._receive(self._gradients_in, self._seat.neighbour(1), action)

    def _receive(self, boundary: Boundary, source: int, action: Action) -> list[torch.Tensor]:
        num_samples = len(self._indices[_grain(action)])
        message = boundary.empty(num_samples)
        dist.recv(message, src=source, tag=_grain(action))
        return boundary.unpack(message, num_samples)

    @property
    def _needs_data(self) -> bool:
        return self._stage.first_layer == 0 or self._stage.is_last


def _send(message: torch.Tensor, target: int, tag: int) -> None:
    dist.send(message, dst=target, tag=tag)


def _grain(action: Action) -> int:
    assert action.grain is not None
    return action.grain


def _where(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, flags, strict=True) if flag]
