"""Compares a model's layers with the untouched model on real samples: both must compute the same, forward and backward.

Both run on the same samples with the same seeds. Layers run as stages do, each on detached copies of what crosses its
cuts. What is compared: outputs, the loss, every gradient and every buffer, in training and in evaluation.
"""

import contextlib
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
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
from zooid.layers.stages.stage_module import Stage, build_stage

MOST_STAGES = 12
"""A model of more layers is compared in stages of several: each costs a moment to generate."""
ROUNDING = 2.0**12
"""Two results differ by rounding where they differ by less than so many units in the last place of the largest."""
_PIECE = 2**20
"""Numbers that are compared at once: what comparing needs beside the tensors is small to any of them."""
_SEED = 20
_CPU = torch.device("cpu")

Tensors = dict[str, torch.Tensor]
_Passed = tuple[Stage, list[Any], tuple[Any, ...]]
"""A stage, what it received, and what it passed on."""


@dataclass(frozen=True)
class Difference:
    """The first thing that layers compute otherwise than the model."""

    what: str
    """What differs, in words, with the parameter or the module."""
    relative: float
    """Largest difference, as a part of the largest number in it."""
    is_in_forward: bool

    def __str__(self) -> str:
        return f"{self.what} differs by {self.relative:.2g} of its size"


@dataclass(frozen=True)
class RunResults:
    """What one forward and backward computed."""

    outputs: Tensors
    gradients: Tensors
    buffers: Tensors


def find_difference(job: Job, model: nn.Module, layered: LayeredModel, batches: Sequence[Batch]) -> Difference | None:
    """Run both on each batch in turn, training and then evaluation; None where all is the same up to rounding.

    The model's weights and buffers are as before in the end.
    """
    with buffers_restored(model):
        chain = StageChain(job, layered, model)
        for batch in batches:
            wanted = run_model(job, model, batch)
            with _as_layers(), contextlib.redirect_stderr(io.StringIO()):
                ran = chain.run(batch)
            if (found := _first_difference(wanted, ran)) is not None:
                return found
    with buffers_restored(model), torch.no_grad():
        outputs = _model_outputs(job, model.eval(), batches[0])
        model.train()
        with _as_layers(), contextlib.redirect_stderr(io.StringIO()):
            found_outputs = StageChain(job, layered, model, "eval").outputs(batches[0])
        return _first_difference(RunResults(outputs, {}, {}), RunResults(found_outputs, {}, {}))


@contextlib.contextmanager
def _as_layers() -> Iterator[None]:
    """What layers raise where the model does not, in words."""
    try:
        yield
    except LayerError:
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise LayerError(f"cut into layers it fails: {type(error).__name__}: {first_line}") from error


def run_model(job: Job, model: nn.Module, batch: Batch) -> RunResults:
    """One forward and backward of the untouched model."""
    model.zero_grad()
    outputs = _model_outputs(job, model, batch)
    with contextlib.nullcontext() if fits_whole(model) else gradients_on_disk(model.parameters()):
        torch.autograd.backward(outputs["loss"])
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad()
    return RunResults({name: value.detach() for name, value in outputs.items()}, gradients, buffers)


def _model_outputs(job: Job, model: nn.Module, batch: Batch) -> Tensors:
    seed_everything()
    with autocasting(job.autocast, _CPU):
        output = model(*batch.args, **batch.kwargs)
        return _outputs(job, output, batch)


class StageChain:
    """All layers of a model as stages in a row, in one process."""

    def __init__(self, job: Job, layered: LayeredModel, model: nn.Module, mode: Mode = "train") -> None:
        self._job = job
        self._hooks = layered.hooks
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        num_stages = min(MOST_STAGES, layered.num_layers)
        cuts = [layered.num_layers * number // num_stages for number in range(num_stages + 1)]
        self._stages = [
            build_stage(layered, first, end, {**parameters, **buffers}, _CPU, mode) for first, end in pairwise(cuts)
        ]
        self._buffers = buffers
        self._fits_whole = fits_whole(model)

    def run(self, batch: Batch) -> RunResults:
        """One forward and backward."""
        passed: list[_Passed] = []
        for stage in self._stages:
            stage.module.zero_grad()
        seed_everything()
        with autocasting(self._job.autocast, _CPU):
            values: Sequence[Any] = flatten_inputs(batch)
            for stage in self._stages:
                inputs = [_passed_on(v, flag) for v, flag in zip(values, stage.differentiable_inputs, strict=True)]
                values = stage.run(*inputs)
                passed.append((stage, inputs, values if not stage.is_last else ()))
            outputs = _outputs(self._job, self._stages[-1].model_output(tuple(values)), batch)
        parameters = [parameter for stage in self._stages for parameter in stage.module.parameters()]
        with contextlib.nullcontext() if self._fits_whole else gradients_on_disk(parameters):
            self._backward(outputs["loss"], passed)
        gradients = self._after_accumulation(apply_hooks(self._hooks, self._gradients()))
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        return RunResults({name: value.detach() for name, value in outputs.items()}, gradients, buffers)

    def _backward(self, loss: torch.Tensor, passed: list[_Passed]) -> None:
        torch.autograd.backward(loss)
        for (_, _, results), (_, received, _) in reversed(list(pairwise(passed))):
            pairs = [(r, v.grad) for r, v in zip(results, received, strict=True) if _has_gradient(r, v)]
            torch.autograd.backward([result for result, _ in pairs], [gradient for _, gradient in pairs])

    def outputs(self, batch: Batch) -> Tensors:
        """One forward, without gradients."""
        seed_everything()
        with torch.no_grad(), autocasting(self._job.autocast, _CPU):
            values: Sequence[Any] = flatten_inputs(batch)
            for stage in self._stages:
                values = stage.run(*values)
            return _outputs(self._job, self._stages[-1].model_output(tuple(values)), batch)

    def _after_accumulation(self, gradients: Tensors) -> Tensors:
        """What the model's hooks leave of complete gradients when they are in their parameters."""
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


def seed_everything() -> None:
    """Seed all generators that a forward may draw from."""
    torch.manual_seed(_SEED)
    np.random.seed(_SEED)
    random.seed(_SEED)


def _passed_on(value: Any, is_differentiable: bool) -> Any:
    return value.detach().requires_grad_(is_differentiable) if isinstance(value, torch.Tensor) else value


def _has_gradient(result: Any, received: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad and received.grad is not None


def _outputs(job: Job, output: Any, batch: Batch) -> Tensors:
    """The loss, and every tensor of floating-point numbers that the model returns."""
    loss, _ = Objective(job).sum_and_weight(output, batch.target, float(batch.num_samples))
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return {"loss": loss, **{f"output {number}": leaf for number, leaf in enumerate(leaves)}}


def _first_difference(wanted: RunResults, found: RunResults) -> Difference | None:
    of_outputs = _between("the {}", wanted.outputs, found.outputs, is_in_forward=True)
    of_gradients = _between("the gradient of {}", wanted.gradients, found.gradients, is_in_forward=False)
    return of_outputs or of_gradients or _between("the buffer {}", wanted.buffers, found.buffers, is_in_forward=True)


def _between(
    what: str, wanted: Tensors, found: Mapping[str, torch.Tensor], *, is_in_forward: bool
) -> Difference | None:
    """The first that differs, in the model's order; a missing one differs by all of its size."""
    differing = {name: tensor for name, tensor in wanted.items() if not _is_same(tensor, found.get(name))}
    if not differing:  # as most are, to the bit: none of them is read again
        return None
    sizes = {name: _largest(tensor) for name, tensor in wanted.items()}
    largest = max(sizes.values())
    for name, tensor in differing.items():
        other = found.get(name)
        if other is None or other.shape != tensor.shape:
            if other is None and sizes[name] == 0:
                continue
            return Difference(what.format(name), 1.0, is_in_forward)
        scale = sizes[name] + 1e-3 * largest
        difference = _largest_difference(tensor, other)
        precision = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
        if difference != 0 and not difference <= ROUNDING * precision * scale:  # the scale may not be a number
            return Difference(what.format(name), difference / scale if scale else 1.0, is_in_forward)
    return None


def _is_same(wanted: torch.Tensor, found: torch.Tensor | None) -> bool:
    return found is not None and wanted.dtype == found.dtype and torch.equal(wanted, found)


def _largest_difference(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """Where both are the same infinity, or both not a number, they do not differ."""
    pairs = zip(_pieces(wanted), _pieces(found), strict=True)
    largest = [_without_equals(own.double(), other.double()).abs().max() for own, other in pairs]
    return float(torch.stack(largest).max()) if largest else 0.0


def _without_equals(wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    is_same = (wanted == found) | (wanted.isnan() & found.isnan())
    return torch.where(is_same, torch.zeros_like(wanted), wanted - found)


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; not a number where one of them is not."""
    largest = [piece.double().abs().max() for piece in _pieces(tensor)]
    return float(torch.stack(largest).max()) if largest else 0.0


def _pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(tensor.detach().reshape(-1), _PIECE) if tensor.numel() else ()
