"""What layers keep and need: every tensor's memory counted while a step runs, by layer."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zooid.core.profile import Bytes


@dataclass(frozen=True)
class LayerMemory:
    """Of one layer, for one grain of one size, in bytes."""

    kept: int
    """More than before, after its forward."""
    forward_peak: int
    backward_peak: int


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, from when they are made until nobody refers to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def know(self, tensors: list[torch.Tensor]) -> None:
        """What was there before is not counted."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = weakref.ref(storage)

    def restart_peak(self) -> None:
        self.peak = self.live

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        known = self._known.get(key)
        if known is not None and known() is not None:
            return
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)

        def freed(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)


class MemoryMarks:
    """At every cut: what is live, and the most that was since the cut before."""

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter = meter
        self.forward: dict[int, tuple[int, int]] = {}
        self.backward: dict[int, tuple[int, int]] = {}

    def __call__(self, layer: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_MemoryMark.apply(self, layer, *tensors))  # type: ignore[no-untyped-call]

    def note(self, marks: dict[int, tuple[int, int]], layer: int) -> None:
        marks[layer] = (self._meter.live, self._meter.peak)
        self._meter.restart_peak()


class _MemoryMark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, marks: MemoryMarks, layer: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.marks, ctx.layer = marks, layer
        ctx.set_materialize_grads(False)
        marks.note(marks.forward, layer)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.marks.note(ctx.marks.backward, ctx.layer)
        return (None, None, *gradients)


def measure_layers(
    num_layers: int,
    before: list[torch.Tensor],
    forward: Callable[[], torch.Tensor],
    watching: Callable[[Any], Any],
) -> list[LayerMemory]:
    """Run one step under the meter. Gradients of parameters have to be there before, as `before`, like all state."""
    meter = MemoryMeter()
    meter.know(before)
    marks = MemoryMarks(meter)
    with meter, watching(marks):
        loss = forward()
        marks.note(marks.forward, num_layers)
        torch.autograd.backward(loss)
        marks.note(marks.backward, 0)
    marks.forward[0] = (0, 0)
    marks.backward[num_layers] = marks.forward[num_layers]
    return [_layer_memory(marks, layer) for layer in range(num_layers)]


def _layer_memory(marks: MemoryMarks, layer: int) -> LayerMemory:
    """From the mark before a layer to the one after it. Where none divides several layers, the last keeps it all."""
    forward, backward = marks.forward, marks.backward
    (live_before, _), (live_after, forward_peak) = forward[_before(forward, layer)], forward[_after(forward, layer)]
    (live_above, _), (_, backward_peak) = backward[_after(backward, layer)], backward[_before(backward, layer)]
    return LayerMemory(
        kept=live_after - live_before if layer + 1 in forward else 0,
        forward_peak=max(0, forward_peak - live_before),
        backward_peak=max(0, backward_peak - live_above),
    )


def _after(marks: dict[int, tuple[int, int]], layer: int) -> int:
    return min(cut for cut in marks if cut > layer)


def _before(marks: dict[int, tuple[int, int]], layer: int) -> int:
    return max(cut for cut in marks if cut <= layer)


def line_through(small: tuple[int, float], large: tuple[int, float]) -> Bytes:
    """Bytes at two grain sizes as a fixed part and a part for each sample; at one size, all of it grows."""
    (few, few_bytes), (many, many_bytes) = small, large
    if few == many:
        return Bytes(per_sample=many_bytes / many)
    slope = max(0.0, (many_bytes - few_bytes) / (many - few))
    return Bytes(per_sample=slope, fixed=max(0.0, many_bytes - slope * many))
