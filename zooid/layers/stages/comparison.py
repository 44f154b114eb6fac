"""Compares a model's layers with the untouched model on real samples, forward and backward.

Both run on the same samples with the same seeds. Layers run as stages do, each on detached copies of the values that
cross its cuts. Outputs, the loss, every gradient and every buffer are compared, in training and in evaluation.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zooid.core.errors import LayerError
from zooid.core.jobs.job import Job
from zooid.layers.disk_tensors import fits_whole, gradients_on_disk
from zooid.layers.jobs.batches import Batch, flatten_inputs
from zooid.layers.jobs.model_builder import buffers_restored
from zooid.layers.jobs.objective import Objective
from zooid.layers.stages.autocast import autocasting
from zooid.layers.stages.layered_model import LayeredModel, Mode, apply_hooks
from zooid.layers.stages.randomness import seed_generators
from zooid.layers.stages.stage_module import build_stage

_MAX_STAGES = 12
"""A model of more layers is compared in stages of several layers, since each stage takes time to generate."""
_ROUNDING = 2.0**12
"""A difference of up to this many units in the last place of the largest number is due to rounding."""
_CHUNK = 2**20
"""Number of elements that are compared at once, so that the comparison needs little memory."""
_SEED = 20
_CPU = torch.device("cpu")

Tensors = dict[str, torch.Tensor]
_Passed = tuple[list[Any], tuple[Any, ...]]
"""The inputs of a stage, and the values that it passes on."""


@dataclass(frozen=True)
class Difference:
    """The first result that differs between the layers and the model."""

    what: str
    """The name of the result, with its parameter or buffer."""
    relative: float
    """The largest difference, as a fraction of the largest number in the result."""
    is_in_forward: bool

    def __str__(self) -> str:
        return f"{self.what} differs by {self.relative:.2g} of its size"


@dataclass(frozen=True)
class RunResults:
    """The results of one forward and backward."""

    outputs: Tensors
    gradients: Tensors
    buffers: Tensors


def find_difference(job: Job, model: nn.Module, layered: LayeredModel, batches: Sequence[Batch]) -> Difference | None:
    """Run both on each batch, in training and then in evaluation; None where all is equal up to rounding.

    The model's weights and buffers are restored.
    """
    with buffers_restored(model):
        chain = StageChain(job, layered, model)
        for batch in batches:
            expected = run_model(job, model, batch)
            with _layer_errors():
                actual = chain.run(batch)
            if (difference := _first_difference(expected, actual)) is not None:
                return difference
    with buffers_restored(model), torch.no_grad():
        outputs = _model_outputs(job, model.eval(), batches[0])
        model.train()
        with _layer_errors():
            actual_outputs, _ = StageChain(job, layered, model, "eval").forward(batches[0])
        return _first_difference(RunResults(outputs, {}, {}), RunResults(actual_outputs, {}, {}))


@contextlib.contextmanager
def _layer_errors() -> Iterator[None]:
    """Raise LayerError for errors of layers, and keep them from printing."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except LayerError:
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise LayerError(f"cut into layers it fails: {type(error).__name__}: {first_line}") from error


def run_model(job: Job, model: nn.Module, batch: Batch) -> RunResults:
    """Run one forward and backward of the untouched model."""
    model.zero_grad()
    outputs = _model_outputs(job, model, batch)
    with contextlib.nullcontext() if fits_whole(model) else gradients_on_disk(model.parameters()):
        torch.autograd.backward(outputs["loss"])
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad()
    return RunResults({name: value.detach() for name, value in outputs.items()}, gradients, buffers)


def _model_outputs(job: Job, model: nn.Module, batch: Batch) -> Tensors:
    seed_generators(_SEED)
    with autocasting(job.autocast, _CPU):
        return _outputs(job, model(*batch.args, **batch.kwargs), batch)


class StageChain:
    """All layers of a model as successive stages in one process."""

    def __init__(self, job: Job, layered: LayeredModel, model: nn.Module, mode: Mode = "train") -> None:
        self._job = job
        self._hooks = layered.hooks
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        num_stages = min(_MAX_STAGES, layered.num_layers)
        cuts = [layered.num_layers * number // num_stages for number in range(num_stages + 1)]
        self._stages = [
            build_stage(layered, first, end, {**parameters, **buffers}, _CPU, mode) for first, end in pairwise(cuts)
        ]
        self._buffers = buffers
        self._fits_whole = fits_whole(model)

    def run(self, batch: Batch) -> RunResults:
        """Run one forward and backward."""
        for stage in self._stages:
            stage.module.zero_grad()
        outputs, passed = self.forward(batch)
        parameters = [parameter for stage in self._stages for parameter in stage.module.parameters()]
        with contextlib.nullcontext() if self._fits_whole else gradients_on_disk(parameters):
            torch.autograd.backward(outputs["loss"])
            for (_, results), (received, _) in reversed(list(pairwise(passed))):
                pairs = [(r, v.grad) for r, v in zip(results, received, strict=True) if _has_gradient(r, v)]
                torch.autograd.backward([result for result, _ in pairs], [gradient for _, gradient in pairs])
        gradients = self._after_accumulation(apply_hooks(self._hooks, self._gradients()))
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        return RunResults({name: value.detach() for name, value in outputs.items()}, gradients, buffers)

    def forward(self, batch: Batch) -> tuple[Tensors, list[_Passed]]:
        """Run one forward; return its outputs, and the values that pass between stages."""
        passed: list[_Passed] = []
        seed_generators(_SEED)
        with autocasting(self._job.autocast, _CPU):
            values: Sequence[Any] = flatten_inputs(batch)
            for stage in self._stages:
                inputs = stage.detached(values)
                values = stage.run(*inputs)
                passed.append((inputs, tuple(values)))
            return _outputs(self._job, self._stages[-1].model_output(tuple(values)), batch), passed

    def _after_accumulation(self, gradients: Tensors) -> Tensors:
        """Run the model's hooks on complete gradients in their parameters, and return the changed gradients."""
        for stage in self._stages:
            for name, parameter in stage.module.named_parameters():
                for hook in self._hooks.after_accumulation.get(name, ()) if name in gradients else ():
                    parameter.grad = gradients[name].clone()
                    hook(parameter)
                    gradients[name] = parameter.grad
        return gradients

    def _gradients(self) -> Tensors:
        total: Tensors = {}
        for stage in self._stages:
            for name, parameter in stage.module.named_parameters():
                if parameter.grad is not None:
                    total[name] = parameter.grad if name not in total else total[name] + parameter.grad
        return total


def _has_gradient(result: Any, received: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad and received.grad is not None


def _outputs(job: Job, output: Any, batch: Batch) -> Tensors:
    """Return the loss, and every floating-point tensor in the model's output."""
    loss, _ = Objective(job).sum_and_weight(output, batch.target, float(batch.num_samples))
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return {"loss": loss, **{f"output {number}": leaf for number, leaf in enumerate(leaves)}}


def _first_difference(expected: RunResults, actual: RunResults) -> Difference | None:
    return (
        _first_differing("the {}", expected.outputs, actual.outputs, is_in_forward=True)
        or _first_differing("the gradient of {}", expected.gradients, actual.gradients, is_in_forward=False)
        or _first_differing("the buffer {}", expected.buffers, actual.buffers, is_in_forward=True)
    )


def _first_differing(
    what: str, expected: Tensors, actual: Mapping[str, torch.Tensor], *, is_in_forward: bool
) -> Difference | None:
    """Return the first difference in the model's order; a missing tensor differs by all of its size."""
    differing = {name: tensor for name, tensor in expected.items() if not _is_equal(tensor, actual.get(name))}
    if not differing:  # most tensors are equal to the bit, and are not read again
        return None
    sizes = {name: _largest(_chunks(tensor)) for name, tensor in expected.items()}
    largest = max(sizes.values())
    for name, tensor in differing.items():
        other = actual.get(name)
        if other is None or other.shape != tensor.shape:
            if other is None and sizes[name] == 0:
                continue
            return Difference(what.format(name), 1.0, is_in_forward)
        scale = sizes[name] + 1e-3 * largest
        difference = _largest(map(_difference, _chunks(tensor), _chunks(other)))
        precision = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
        if difference != 0 and not difference <= _ROUNDING * precision * scale:  # the scale may be NaN
            return Difference(what.format(name), difference / scale if scale else 1.0, is_in_forward)
    return None


def _is_equal(expected: torch.Tensor, actual: torch.Tensor | None) -> bool:
    return actual is not None and expected.dtype == actual.dtype and torch.equal(expected, actual)


def _difference(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Return the differences of two chunks; the same infinities, and NaN in both, do not differ."""
    is_same = (expected == actual) | (expected.isnan() & actual.isnan())
    return torch.where(is_same, torch.zeros_like(expected), expected - actual)


def _largest(chunks: Iterable[torch.Tensor]) -> float:
    """Return the largest absolute value, or NaN where one of them is."""
    largest = [chunk.abs().max() for chunk in chunks]
    return float(torch.stack(largest).max()) if largest else 0.0


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    for chunk in torch.split(tensor.detach().reshape(-1), _CHUNK) if tensor.numel() else ():
        yield chunk.double()
