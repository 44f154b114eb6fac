"""Readings at the cuts of a model that runs as one module, forward and backward.

Small layers run one by one would seem slower than in a stage: each would pay for a call, an autograd graph of its own
and cold caches. So all layers run as one module, with a mark at each cut. A mark is an operation that only reads a
clock, in its forward and again in its backward, which autograd calls when everything after the cut is done.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes timestamps that can be converted to seconds afterwards."""

    def now(self) -> Any:
        """Return a timestamp."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two timestamps that have both passed."""

    def finish(self) -> None:
        """Wait until the device has finished all its work."""


class CpuClock:
    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def finish(self) -> None:
        """Return at once, since work on a CPU is never pending."""


class CudaClock:
    """Records events in the stream, which measure the work of the device itself."""

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
    """The readings at every cut of one run, such as the time or the memory in use."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read
        self.forward: dict[int, Any] = {}
        """Readings in the forward, by the layer that begins at the cut."""
        self.backward: dict[int, Any] = {}
        """Readings in the backward, by the layer that begins at the cut."""

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
    """Run the backward of a loss, if it has one: a span of frozen layers has none."""
    if loss.requires_grad:
        torch.autograd.backward(loss)


def ones_above(*tensors: torch.Tensor) -> torch.Tensor:
    """Return a loss of zero whose backward gives a gradient of ones to each tensor, in place of the layers above."""
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
