"""Readings at the cuts of a model that runs as a whole, forward and backward.

Run one by one, small layers would seem slower than they are in a stage: each would pay for a call, for a tape of its
own and for cold caches. So the whole run of layers is generated as one module, with a mark at each cut: an operation
that does nothing but read a clock, and whose backward, which autograd calls when everything after the cut is done,
reads it again.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes timestamps that can be turned into seconds afterwards."""

    def now(self) -> Any:
        """A point in time."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two points, when both have passed."""

    def finish(self) -> None:
        """Wait until all that was asked of the device is done."""


class CpuClock:
    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def finish(self) -> None:
        """Nothing is ever outstanding."""


class CudaClock:
    """Events in the stream: what the device itself did between them."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000

    def finish(self) -> None:
        torch.cuda.synchronize()


def clock_for(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else CpuClock()


class Marks:
    """What was read at every cut of one run: the time, say, or the memory in use."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read
        self.forward: dict[int, Any] = {}
        """By the layer that begins at the cut."""
        self.backward: dict[int, Any] = {}

    def __call__(self, layer: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_Mark.apply(self, layer, *tensors))  # type: ignore[no-untyped-call]


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, marks: Marks, layer: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.marks, ctx.layer = marks, layer
        ctx.set_materialize_grads(False)
        marks.forward[layer] = marks.read()
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.marks.backward[ctx.layer] = ctx.marks.read()
        return (None, None, *gradients)


def run_backward(loss: torch.Tensor) -> None:
    """Nothing where no parameter before it is trained, as in a span of frozen layers."""
    if loss.requires_grad:
        torch.autograd.backward(loss)


def ones_above(*tensors: torch.Tensor) -> torch.Tensor:
    """A loss of zero, whose backward gives ones to each of these, as the layers above would give their gradients."""
    loss: torch.Tensor = _OnesAbove.apply(*tensors)  # type: ignore[no-untyped-call]
    return loss


class _OnesAbove(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.likes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        return torch.zeros((), device=tensors[0].device if tensors else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return tuple(torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.likes)
