"""Times of layers, measured in the order in which training runs them."""

import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from zooid.core.job import Job
from zooid.core.profile import TimePoint
from zooid.layers import Batch, LayeredModel, Stage, build_stage, flatten_inputs, grain_randomness, loss_sum_and_weight

MIN_REPEATS = 5
MAX_REPEATS = 30
SECONDS_PER_SIZE = 1.0
"""A grain size is measured at least MIN_REPEATS times, and more often while it is quick."""


@dataclass
class _Samples:
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class LayerTimer:
    """Each layer as a stage of its own, around the model's real weights."""

    job: Job
    stages: tuple[Stage, ...]

    @staticmethod
    def build(job: Job, layered: LayeredModel, model: nn.Module) -> "LayerTimer":
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return LayerTimer(
            job, tuple(build_stage(layered, layer, layer + 1, state, "cpu") for layer in range(layered.num_layers))
        )

    def measure(self, batch: Batch) -> list[TimePoint]:
        """Median forward and backward time of every layer for a grain of this batch's size."""
        samples = [_Samples() for _ in self.stages]
        self.run_once(batch)  # warm-up
        gc.collect()
        begin_s = time.perf_counter()
        for repeat in range(MAX_REPEATS):
            self._run(batch, samples)
            if repeat + 1 >= MIN_REPEATS and time.perf_counter() - begin_s > SECONDS_PER_SIZE:
                break
        return [
            TimePoint(
                num_samples=batch.num_samples,
                forward_s=statistics.median(sample.forward_s),
                backward_s=statistics.median(sample.backward_s),
            )
            for sample in samples
        ]

    def run_once(self, batch: Batch) -> None:
        """One forward and backward, not measured."""
        self._run(batch, None)

    def activation_bytes(self, batch: Batch) -> list[int]:
        """What every layer keeps for its backward, each storage counted once, parameters left out."""
        sizes = []
        values = flatten_inputs(batch)
        for stage in self.stages:
            parameters = {p.untyped_storage().data_ptr() for p in stage.module.parameters()}
            kept: dict[int, int] = {}

            def pack(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                values = list(stage.module(*_leaves(values, stage)))
            sizes.append(sum(size for pointer, size in kept.items() if pointer not in parameters))
            values = [value.detach() for value in values]
        return sizes

    def _run(self, batch: Batch, samples: list[_Samples] | None) -> None:
        with grain_randomness(self.job.seed, 0, 0):
            tape = list(self._forward(batch, samples))
        gradients: list[torch.Tensor] = []
        for layer in reversed(range(len(self.stages))):
            inputs, outputs = tape[layer]
            begin_s = time.perf_counter()
            if layer == len(self.stages) - 1:
                torch.autograd.backward(outputs)
            else:
                pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
            if samples is not None:
                samples[layer].backward_s.append(time.perf_counter() - begin_s)
            gradients = [v.grad if v.grad is not None else torch.zeros_like(v) for v in inputs]

    def _forward(
        self, batch: Batch, samples: list[_Samples] | None
    ) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        values = flatten_inputs(batch)
        for layer, stage in enumerate(self.stages):
            inputs = _leaves(values, stage)
            begin_s = time.perf_counter()
            outputs = list(stage.module(*inputs))
            if stage.is_last:
                output = stage.model_output(tuple(outputs))
                total, _ = loss_sum_and_weight(self.job, output, batch.target, batch.num_samples)
                outputs = [total]
            if samples is not None:
                samples[layer].forward_s.append(time.perf_counter() - begin_s)
            yield inputs, outputs
            values = [value.detach() for value in outputs]


def _leaves(values: list[torch.Tensor], stage: Stage) -> list[torch.Tensor]:
    """Fresh inputs of a layer; gradients stop at them, as they do at a cut."""
    flags = stage.differentiable_inputs
    return [value.detach().requires_grad_(flag) for value, flag in zip(values, flags, strict=True)]
