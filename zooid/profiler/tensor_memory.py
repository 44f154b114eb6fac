"""What layers keep and need: every tensor's memory counted while a step runs, by layer."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zooid.core.plans.profile import Bytes
from zooid.layers import watching_cuts
from zooid.profiler.cut_marks import Marks, run_backward


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

    def read(self) -> tuple[int, int]:
        """What is live, and the most that was since it was read before."""
        reading = (self.live, self.peak)
        self.peak = self.live
        return reading

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


def measure_layers(layers: range, before: list[torch.Tensor], forward: Callable[[], torch.Tensor]) -> list[LayerMemory]:
    """Run one step under the meter. Gradients of parameters have to be there before, as `before`, like all state."""
    meter = MemoryMeter()
    meter.know(before)
    marks = Marks(meter.read)
    with meter, watching_cuts(marks):
        marks.forward[layers.start] = meter.read()
        loss = forward()
        marks.backward[layers.stop] = meter.read()
        marks.forward.setdefault(layers.stop, marks.backward[layers.stop])
        run_backward(loss)
        marks.backward[layers.start] = meter.read()
    return [_layer_memory(marks, layer) for layer in layers]


def _layer_memory(marks: Marks, layer: int) -> LayerMemory:
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
