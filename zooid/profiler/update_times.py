"""Times of the two updates after a backward: adding up gradients, and the optimizer step."""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

from zooid.comm.calls.tensors import reduction_of, wire_view
from zooid.core.jobs.job import Job
from zooid.layers.disk_tensors import give_back_freed
from zooid.profiler.grain_times import is_throttled

_CACHE_BYTES = 32 * 2**20


def measure_optimizer(job: Job, parameters: Sequence[tuple[str, nn.Parameter]]) -> tuple[float, int]:
    """Return the time of one optimizer step and the bytes of its state; the weights are restored."""
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    if not named:
        return 0.0, 0
    for _, parameter in named:
        parameter.grad = None
    give_back_freed()  # memory may be too small to hold freed pages as well
    weights = [parameter.detach().clone() for _, parameter in named]
    gradients = [torch.zeros_like(parameter) for _, parameter in named]
    optimizer = job.optimizer(named)
    times = []
    others = _other_memory(weights)
    for _ in range(5):
        for (_, parameter), gradient in zip(named, gradients, strict=True):
            parameter.grad = gradient.zero_()
        others.zero_()
        begin_s = time.perf_counter()
        optimizer.step()
        if any(parameter.is_cuda for _, parameter in named):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin_s)
    state_values = [value for state in optimizer.state.values() for value in state.values()]
    state_bytes = sum(value.nbytes for value in state_values if isinstance(value, torch.Tensor))
    with torch.no_grad():
        for (_, parameter), weight in zip(named, weights, strict=True):
            parameter.copy_(weight)
    return _typical(times), state_bytes


def _other_memory(own: Sequence[torch.Tensor]) -> torch.Tensor:
    """Memory to write before each update, which after a backward finds little of its own in the caches.

    Updates of large models fill the caches themselves.
    """
    return torch.empty(max(0, _CACHE_BYTES - sum(tensor.nbytes for tensor in own)), dtype=torch.uint8)


def measure_reduction(parameters: Sequence[nn.Parameter]) -> float:
    """Return the time to gather all gradients into one buffer and to add those of one other replica."""
    if not parameters:
        return 0.0
    give_back_freed()
    gradients = [torch.zeros(p.numel(), dtype=p.dtype) for p in parameters]
    buffer = torch.cat(gradients)  # members keep it from step to step
    received = wire_view(buffer.clone())
    reduction = reduction_of(torch.distributed.ReduceOp.SUM, buffer.dtype)
    times = []
    others = _other_memory(gradients)
    for _ in range(5):
        others.zero_()
        begin_s = time.perf_counter()
        torch.cat(gradients, out=buffer)
        reduction.combine(reduction.numbers(buffer), [(1, received)], 0)
        times.append(time.perf_counter() - begin_s)
    return _typical(times)


def _typical(times_s: list[float]) -> float:
    """Return the median, or the mean where this process is throttled."""
    return statistics.fmean(times_s) if is_throttled() else statistics.median(times_s)
