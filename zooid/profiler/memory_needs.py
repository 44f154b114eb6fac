"""The memory that layers need at any grain size, and the memory of the process around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from zooid.core.plans.profile import Bytes
from zooid.core.resources.machine import memory_bytes
from zooid.core.resources.process_memory import forget_peak, peak_needed_bytes
from zooid.layers import Batch
from zooid.layers.disk_tensors import give_back_freed
from zooid.predictor import grain_bytes
from zooid.profiler.cut_marks import run_backward
from zooid.profiler.largest_grain import runs_on_gpu, runs_within
from zooid.profiler.layer_times import LayerTimer
from zooid.profiler.tensor_memory import LayerMemory, line_through, measure_layers

_GRAINS_IN_FLIGHT = 5
_MIN_KEPT_BYTES = 2**24
"""Fewer bytes of activations say nothing about the allocator's overhead."""
_MAX_OVERHEAD = 0.5
_SURELY_FITS = 0.75
"""A grain whose predicted memory is below this fraction of the limit is not tried."""


@dataclass(frozen=True)
class SpanMemory:
    """The memory of every layer of a span at two grain sizes, and of the process around them."""

    small: tuple[int, list[LayerMemory]]
    """The small grain size, and the memory of each layer."""
    large: tuple[int, list[LayerMemory]]
    """The large grain size, and the memory of each layer."""
    state_bytes: int = 0
    """Bytes of the parameters and buffers of these layers."""
    runtime_bytes: int = 0
    overhead: float = 0.0
    """Overhead of the allocator with several grains in flight, as a fraction of their activations."""

    def of_layers(self) -> list[tuple[Bytes, Bytes, Bytes]]:
        """Return the activations, forward peak and backward peak of every layer, for any grain size."""
        (few, at_few), (many, at_many) = self.small, self.large

        def line(layer: int, field: str) -> Bytes:
            return line_through((few, getattr(at_few[layer], field)), (many, getattr(at_many[layer], field)))

        layers = range(len(at_few))
        return [(line(layer, "kept"), line(layer, "forward_peak"), line(layer, "backward_peak")) for layer in layers]

    def step_bytes(self, num_samples: int) -> float:
        """Return the peak memory of a step of these layers, beyond weights and gradients."""
        return grain_bytes(self.of_layers(), num_samples)[1]


def measure_memory(timer: LayerTimer, sizes: Sequence[int], batch_of: Callable[[int], Batch]) -> SpanMemory:
    """Measure two of the probed grain sizes; the larger one also shows the memory of the process itself."""
    few, many = sizes[0], sizes[min(len(sizes) - 1, 2)]
    state = [*timer.stage.module.parameters(), *timer.stage.module.buffers()]

    def at(size: int) -> list[LayerMemory]:
        batch = batch_of(size).to(timer.device)
        timer.run_once(batch)  # allocates the gradients of parameters
        before = [*state, *(p.grad for p in timer.stage.module.parameters() if p.grad is not None)]
        before += [value for value in (*batch.args, *batch.kwargs.values()) if isinstance(value, torch.Tensor)]
        return measure_layers(timer.layers, before, lambda: timer.forward(batch))

    state_bytes = sum(tensor.nbytes for tensor in state)
    memory = SpanMemory((few, at(few)), (many, at(many)), state_bytes=state_bytes)
    batch = batch_of(many)
    counted = memory.step_bytes(many) + 2 * state_bytes
    if timer.device.type == "cuda":
        return replace(memory, runtime_bytes=_gpu_runtime_bytes(timer, batch, counted))
    if timer.layers.start > 0:
        counted += timer.stage.model.bytes_into(timer.layers.start, many)  # a stage counts these as received
    one = _peak_of(timer, batch, 1)
    several = _peak_of(timer, batch, _GRAINS_IN_FLIGHT)
    kept = (_GRAINS_IN_FLIGHT - 1) * sum(layer.kept for layer in memory.large[1])
    overhead = min(_MAX_OVERHEAD, max(0.0, (several - one) / kept - 1)) if kept > _MIN_KEPT_BYTES else 0.0
    return replace(memory, runtime_bytes=max(0, round(one - counted)), overhead=overhead)


def _peak_of(timer: LayerTimer, batch: Batch, num_grains: int) -> int:
    """Return the peak memory of this process with several grains in flight, as in a pipeline.

    Freed memory that the allocator has kept does not count.
    """
    give_back_freed()
    forget_peak()
    losses = [timer.forward(batch) for _ in range(num_grains)]
    while losses:
        run_backward(losses.pop())
    return peak_needed_bytes()


def _gpu_runtime_bytes(timer: LayerTimer, batch: Batch, counted: float) -> int:
    """Return the bytes that the driver keeps for this process and that operations use beside their results."""
    torch.cuda.reset_peak_memory_stats()
    timer.run_once(batch)
    free, total = torch.cuda.mem_get_info()
    of_driver = total - free - torch.cuda.memory_reserved()
    return round(of_driver + max(0.0, torch.cuda.max_memory_allocated() - counted))


def memory_limit(device: torch.device, allowed_bytes: int | None) -> int:
    """Return the memory of the GPU, or the memory of the offer as far as this process may use it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return min(allowed_bytes or memory_bytes(), memory_bytes())


def surely_fits(memory: SpanMemory, num_samples: int, limit_bytes: int) -> bool:
    """Whether the predicted memory of a grain is so far below the limit that it need not be tried."""
    needed = memory.runtime_bytes + 2 * memory.state_bytes + memory.step_bytes(num_samples)
    return needed < _SURELY_FITS * limit_bytes


def runs(timer: LayerTimer, batch_of: Callable[[int], Batch], limit_bytes: int, size: int) -> bool:
    """Whether the device can run a grain of this size."""

    def work() -> None:
        timer.run_once(batch_of(size))

    return runs_on_gpu(work) if timer.device.type == "cuda" else runs_within(work, limit_bytes)
