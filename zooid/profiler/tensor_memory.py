"""The memory that each layer keeps and needs, from counting every tensor while a step runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zooid.core.plans.profile import Bytes
from zooid.layers import watching_cuts
from zooid.layers.live_storages import LiveStorages
from zooid.profiler.cut_marks import Marks, run_backward


@dataclass(frozen=True)
class LayerMemory:
    """Bytes that one layer needs for one grain of one size."""

    kept: int
    """Bytes that remain allocated after the forward."""
    forward_peak: int
    backward_peak: int


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations create, until nothing refers to them."""

    def __init__(self, existing: list[torch.Tensor]) -> None:
        """`existing` tensors are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._storages = LiveStorages()
        for tensor in existing:
            self._storages.add(tensor.untyped_storage(), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and (storage := leaf.untyped_storage()) not in self._storages:
                self._storages.add(storage, storage.nbytes())
                self.peak = max(self.peak, self._storages.num_bytes)
        return result

    def read(self) -> tuple[int, int]:
        """Return the bytes that are live, and their peak since the last reading."""
        reading = (self._storages.num_bytes, self.peak)
        self.peak = self._storages.num_bytes
        return reading


def measure_layers(layers: range, before: list[torch.Tensor], forward: Callable[[], torch.Tensor]) -> list[LayerMemory]:
    """Run one step under the meter. `before` are all existing tensors, including the gradients of parameters."""
    meter = MemoryMeter(before)
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
    """Return the memory between the marks around a layer; among layers that no mark divides, the last keeps all."""
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
    """Split bytes at two grain sizes into fixed bytes and bytes per sample; with one size, all are per sample."""
    (few, few_bytes), (many, many_bytes) = small, large
    if few == many:
        return Bytes(per_sample=many_bytes / many)
    slope = max(0.0, (many_bytes - few_bytes) / (many - few))
    return Bytes(per_sample=slope, fixed=max(0.0, many_bytes - slope * many))
