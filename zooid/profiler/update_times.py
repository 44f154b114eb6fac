"""Times of what happens to parameters after a backward: gradients are added up, and the optimizer changes weights."""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

from zooid.comm.calls.tensors import reduction_of, wire_view
from zooid.core.jobs.job import Job
from zooid.layers.disk_tensors import give_back_freed
from zooid.profiler.layer_times import is_throttled


def measure_optimizer(job: Job, parameters: Sequence[tuple[str, nn.Parameter]]) -> tuple[float, int]:
    """Time of one update of these parameters, and the bytes of state it keeps; weights are as before in the end."""
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    if not named:
        return 0.0, 0
    for _, parameter in named:
        parameter.grad = None
    give_back_freed()  # there may be no room for more than is measured
    weights = [parameter.detach().clone() for _, parameter in named]
    gradients = [torch.zeros_like(parameter) for _, parameter in named]
    optimizer = job.optimizer(named)
    times = []
    for _ in range(5):
        for (_, parameter), gradient in zip(named, gradients, strict=True):
            parameter.grad = gradient.zero_()
        begin_s = time.perf_counter()
        optimizer.step()
        if any(parameter.is_cuda for _, parameter in named):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin_s)
    state_bytes = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    with torch.no_grad():
        for (_, parameter), weight in zip(named, weights, strict=True):
            parameter.copy_(weight)
    return _typical(times), state_bytes


def measure_reduction(parameters: Sequence[nn.Parameter]) -> float:
    """Time to gather all gradients into one buffer, and to add those of one other replica."""
    if not parameters:
        return 0.0
    give_back_freed()
    gradients = [torch.zeros(p.numel(), dtype=p.dtype) for p in parameters]
    own = torch.cat(gradients)  # which members keep from step to step
    other = wire_view(own.clone())
    adding = reduction_of(torch.distributed.ReduceOp.SUM, own.dtype)
    times = []
    for _ in range(5):
        begin_s = time.perf_counter()
        torch.cat(gradients, out=own)
        adding.combine(adding.numbers(own), [(1, other)], 0)
        times.append(time.perf_counter() - begin_s)
    return _typical(times)


def _typical(times_s: list[float]) -> float:
    """The median; the mean where this process is made to pause."""
    return statistics.fmean(times_s) if is_throttled() else statistics.median(times_s)
