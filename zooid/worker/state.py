"""What a member trains: parameters, buffers and optimizer, changed only by applying a prepared step."""

from collections.abc import Sequence

import torch
from torch import distributed as dist
from torch import nn

from zooid.core.job import Job

_Buckets = dict[torch.dtype, torch.Tensor]


class TrainingState:
    """Between the start of a step and its apply only gradients and buffers change; `drop` restores the latter."""

    def __init__(self, module: nn.Module, job: Job, persistent_names: frozenset[str]) -> None:
        self.module = module
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
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

    def _changes(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Floating-point buffers, as they were, and what the step did to them: exactly 0 where it did nothing."""
        return [
            (buffer, before, torch.where(buffer == before, torch.zeros_like(buffer), buffer - before))
            for buffer, before in zip(self._buffers, self._buffers_before, strict=True)
            if buffer.is_floating_point()
        ]

    def square_sum(self) -> float:
        """Σg² of the held gradients; not finite where any of them is not."""
        gradients = _unflatten(self._held, self._parameters)
        return float(sum(gradient.double().square().sum() for gradient in gradients))

    def apply(self, scale: float) -> None:
        """One optimizer update from the held gradients, which stay held until the next step is prepared."""
        flags = [_flag(parameter) for parameter in self._parameters]
        values = _unflatten(self._held, [*self._parameters, *flags])
        for parameter, gradient, touched in zip(self._parameters, values, values[len(flags) :], strict=False):
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
