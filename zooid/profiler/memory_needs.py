"""Memory that layers need at any grain size, and that of the process around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from zooid.core.plans.profile import Bytes
from zooid.core.resources.machine import forget_peak, memory_bytes, peak_resident_bytes
from zooid.layers import Batch
from zooid.layers.disk_tensors import give_back_freed
from zooid.predictor import grain_bytes
from zooid.profiler.cut_marks import run_backward
from zooid.profiler.largest_grain import runs_on_gpu, runs_within
from zooid.profiler.layer_times import LayerTimer
from zooid.profiler.tensor_memory import LayerMemory, line_through, measure_layers

GRAINS_UNDER_WAY = 5
LEAST_KEPT_BYTES = 2**24
"""Less says nothing about an allocator."""
MOST_OVERHEAD = 0.5
_SURELY_FITS = 0.75
"""Of the memory; what needs less by prediction is not tried."""


@dataclass(frozen=True)
class Held:
    """Memory of every layer of a span at two grain sizes, and of the process around them."""

    small: tuple[int, list[LayerMemory]]
    large: tuple[int, list[LayerMemory]]
    state_bytes: int = 0
    """Parameters and buffers of these layers."""
    runtime_bytes: int = 0
    overhead: float = 0.0
    """Of the allocator, when several grains are under way."""

    def of_layers(self) -> list[tuple[Bytes, Bytes, Bytes]]:
        """What every layer keeps, and its peaks in forward and backward, by grain size."""
        (few, at_few), (many, at_many) = self.small, self.large

        def line(layer: int, field: str) -> Bytes:
            return line_through((few, getattr(at_few[layer], field)), (many, getattr(at_many[layer], field)))

        layers = range(len(at_few))
        return [(line(layer, "kept"), line(layer, "forward_peak"), line(layer, "backward_peak")) for layer in layers]

    def step_bytes(self, num_samples: int) -> float:
        """The most that a step of these layers needs on top of weights and gradients."""
        return grain_bytes(self.of_layers(), num_samples)[1]


def measure_memory(timer: LayerTimer, sizes: Sequence[int], batch_of: Callable[[int], Batch]) -> Held:
    """At a small and at a larger grain size, of those to be probed; the larger tells what the process itself needs."""
    few, many = sizes[0], sizes[min(len(sizes) - 1, 2)]
    state = [*timer.stage.module.parameters(), *timer.stage.module.buffers()]

    def at(size: int) -> list[LayerMemory]:
        batch = batch_of(size).to(timer.device)
        timer.run_once(batch)  # gradients of parameters have to be there
        before = [*state, *(p.grad for p in timer.stage.module.parameters() if p.grad is not None)]
        before += [value for value in (*batch.args, *batch.kwargs.values()) if isinstance(value, torch.Tensor)]
        return measure_layers(timer.layers, before, lambda: timer.forward(batch))

    held = Held((few, at(few)), (many, at(many)), state_bytes=sum(t.numel() * t.element_size() for t in state))
    batch = batch_of(many)
    counted = held.step_bytes(many) + 2 * held.state_bytes
    if timer.device.type == "cuda":
        return replace(held, runtime_bytes=_gpu_runtime_bytes(timer, batch, counted))
    if timer.layers.start > 0:
        counted += timer.stage.model.bytes_into(timer.layers.start, many)  # which a stage counts as received
    one = _peak_of(timer, batch, 1)
    several = _peak_of(timer, batch, GRAINS_UNDER_WAY)
    kept = (GRAINS_UNDER_WAY - 1) * sum(layer.kept for layer in held.large[1])
    overhead = min(MOST_OVERHEAD, max(0.0, (several - one) / kept - 1)) if kept > LEAST_KEPT_BYTES else 0.0
    return replace(held, runtime_bytes=max(0, round(one - counted)), overhead=overhead)


def _peak_of(timer: LayerTimer, batch: Batch, num_grains: int) -> int:
    """The most memory that this process has while so many grains are under way, as in a pipeline.

    Memory that was freed before, and that the allocator has kept, is no part of it.
    """
    give_back_freed()
    forget_peak()
    losses = [timer.forward(batch) for _ in range(num_grains)]
    while losses:
        run_backward(losses.pop())
    return peak_resident_bytes()


def _gpu_runtime_bytes(timer: LayerTimer, batch: Batch, counted: float) -> int:
    """What the driver keeps for this process, and what operations use beside their results."""
    torch.cuda.reset_peak_memory_stats()
    timer.run_once(batch)
    free, total = torch.cuda.mem_get_info()
    of_driver = total - free - torch.cuda.memory_reserved()
    return round(of_driver + max(0.0, torch.cuda.max_memory_allocated() - counted))


def memory_limit(device: torch.device, allowed_bytes: int | None) -> int:
    """What an offer has for a member, as far as this process may use it; a GPU's own memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return min(allowed_bytes or memory_bytes(), memory_bytes())


def surely_fits(held: Held, num_samples: int, limit_bytes: int) -> bool:
    """Whether a grain needs so little by prediction that nobody has to try it."""
    needed = held.runtime_bytes + 2 * held.state_bytes + held.step_bytes(num_samples)
    return needed < _SURELY_FITS * limit_bytes


def runs(timer: LayerTimer, batch_of: Callable[[int], Batch], limit_bytes: int, size: int) -> bool:
    """Whether the device itself can run a grain of this size."""

    def work() -> None:
        timer.run_once(batch_of(size))

    return runs_on_gpu(work) if timer.device.type == "cuda" else runs_within(work, limit_bytes)
