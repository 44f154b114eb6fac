"""What a member trains: parameters, buffers and optimizer, changed only by applying a prepared step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch import nn

from zooid.core.job import Job

_Buckets = dict[torch.dtype, torch.Tensor]


@dataclass(frozen=True)
class Tie:
    """Parameters that several stages use: each has its own copy, and all are updated alike."""

    names: tuple[str, ...]
    group: dist.ProcessGroup
    """The members of one replica whose stages use them."""
    counts_here: bool
    """Whether this stage is the one at which they count once for the norm of all gradients."""


class TrainingState:
    """Between the start of a step and its apply only gradients and buffers change; `drop` restores the latter."""

    def __init__(self, module: nn.Module, job: Job, persistent_names: frozenset[str], ties: Sequence[Tie] = ()) -> None:
        self.module = module
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._names = tuple(trained)
        self._parameters = list(trained.values())
        self._ties = tuple(ties)
        self._buffers = [buffer for name, buffer in module.named_buffers() if name in persistent_names]
        named = list(module.named_parameters())
        self._optimizer: torch.optim.Optimizer | None = job.optimizer(named) if named else None
        self._held: _Buckets = {}
        self._held_statistics: _Buckets = {}
        self._buffers_before: list[torch.Tensor] = []

    def begin(self) -> None:
        self._buffers_before = [buffer.clone() for buffer in self._buffers]
        for parameter in self._parameters:
            parameter.grad = None

    def reduce(self, group: dist.ProcessGroup | None) -> None:
        """Sum the gradients, and average the statistics, over the replicas of this stage; hold both, apply neither."""
        self._held = _flatten(
            [p.grad if p.grad is not None else torch.zeros_like(p, requires_grad=False) for p in self._parameters]
            + [_flag(parameter) for parameter in self._parameters]
        )
        self._held_statistics = _flatten([change for _, _, change in self._changes()])
        if group is not None:
            for bucket in self._held.values():
                dist.all_reduce(bucket, group=group)
            for bucket in self._held_statistics.values():
                dist.all_reduce(bucket, op=dist.ReduceOp.AVG, group=group)
        for tie in self._ties:
            self._sum_tied(tie)

    def _sum_tied(self, tie: Tie) -> None:
        """Add up what every stage that uses these parameters found for them."""
        gradients, flags = self._held_values()
        tied = [values[name] for values in (gradients, flags) for name in tie.names if name in values]
        for dtype in dict.fromkeys(value.dtype for value in tied):
            own = [value for value in tied if value.dtype == dtype]
            total = torch.cat([value.reshape(-1) for value in own])
            dist.all_reduce(total, group=tie.group)
            for value, summed in zip(own, torch.split(total, [value.numel() for value in own]), strict=True):
                value.copy_(summed.view_as(value))

    def _held_values(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The held gradients, and whether the loss reached each parameter, by name."""
        values = _unflatten(self._held, [*self._parameters, *(_flag(parameter) for parameter in self._parameters)])
        half = len(self._parameters)
        return dict(zip(self._names, values[:half], strict=True)), dict(zip(self._names, values[half:], strict=True))

    def _changes(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Floating-point buffers, as they were, and what the step did to them: exactly 0 where it did nothing."""
        return [
            (buffer, before, torch.where(buffer == before, torch.zeros_like(buffer), buffer - before))
            for buffer, before in zip(self._buffers, self._buffers_before, strict=True)
            if buffer.is_floating_point()
        ]

    def square_sum(self) -> float:
        """Σg² of the held gradients, tied ones at one of their stages; not finite where any of them is not."""
        elsewhere = {name for tie in self._ties if not tie.counts_here for name in tie.names}
        gradients, _ = self._held_values()
        return float(sum(g.double().square().sum() for name, g in gradients.items() if name not in elsewhere))

    def apply(self, scale: float) -> None:
        """One optimizer update from the held gradients, which stay held until the next step is prepared."""
        gradients, flags = self._held_values()
        for parameter, gradient, touched in zip(self._parameters, gradients.values(), flags.values(), strict=True):
            parameter.grad = None if not touched else gradient if scale == 1.0 else gradient * scale
        if self._optimizer is not None:
            self._optimizer.step()
        changes = self._changes()
        means = _unflatten(self._held_statistics, [change for _, _, change in changes])
        for (buffer, before, _), mean in zip(changes, means, strict=True):
            buffer.copy_(before + mean)

    def drop(self) -> None:
        """Forget the step: nothing of it remains."""
        for buffer, before in zip(self._buffers, self._buffers_before, strict=True):
            buffer.copy_(before)
        for parameter in self._parameters:
            parameter.grad = None


def _flag(parameter: nn.Parameter) -> torch.Tensor:
    """1 where the loss reached the parameter. It is reduced with the gradients: what no replica reached stays None,
    as in the plain loop, so that no optimizer decays it."""
    return torch.ones(1, dtype=parameter.dtype) * (parameter.grad is not None)


def _flatten(tensors: list[torch.Tensor]) -> _Buckets:
    """One flat copy per type of number."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    return {d: torch.cat([tensor.detach().reshape(-1) for tensor in tensors if tensor.dtype == d]) for d in dtypes}


def _unflatten(buckets: _Buckets, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    offsets = dict.fromkeys(buckets, 0)
    result = []
    for tensor in like:
        start = offsets[tensor.dtype]
        offsets[tensor.dtype] = start + tensor.numel()
        result.append(buckets[tensor.dtype][start : start + tensor.numel()].view_as(tensor))
    return result
