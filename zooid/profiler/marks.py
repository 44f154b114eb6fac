"""Timestamps at the cuts of a model that runs as a whole, forward and backward.

Run one by one, small layers would seem slower than they are in a stage: each would pay for a call, for a tape of its
own and for cold caches. So the whole run of layers is generated as one module, with a mark at each cut: an operation
that does nothing but note the time, and whose backward, which autograd calls when everything after the cut is done,
notes it again.
"""

import time
from dataclasses import dataclass, field
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


@dataclass
class Marks:
    """The timestamps of one run. A mark has an entry and an exit, so that its own work belongs to no layer."""

    clock: Clock
    forward: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """By the layer that begins at the cut."""
    backward: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def clear(self) -> None:
        self.forward.clear()
        self.backward.clear()

    def __call__(self, layer: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_Mark.apply(self, layer, *tensors))  # type: ignore[no-untyped-call]


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, marks: Marks, layer: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        entry = marks.clock.now()
        ctx.marks, ctx.layer = marks, layer
        ctx.set_materialize_grads(False)
        marks.forward[layer] = (entry, marks.clock.now())
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        entry = ctx.marks.clock.now()
        ctx.marks.backward[ctx.layer] = (entry, ctx.marks.clock.now())
        return (None, None, *gradients)
