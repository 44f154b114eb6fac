"""Stages of a job beside the untouched model: loss, gradients and buffers after two grains."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from zooid import Job
from zooid.layers import Batch, LayeredModel, Objective, Stage, apply_hooks, build_stage, flatten_inputs

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}
SMALL = 1e-3
"""Tensors whose entries are smaller than this part of the largest one are compared with that part of it."""
MOST_STAGES = 3


@dataclass(frozen=True)
class Outcome:
    """What training has left behind after some grains, by name."""

    losses: dict[str, Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation draws the same random numbers wherever it runs: a stage draws in another order than a model."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.default_generator.manual_seed(0)
        return func(*args, **(kwargs or {}))


def grain_loss(job: Job, output: Any, batch: Batch) -> Tensor:
    """The loss of a grain, summed over its samples."""
    total, _ = Objective(job).sum_and_weight(output, batch.target, float(batch.num_samples))
    return total


def run_untouched(job: Job, model: nn.Module, batches: list[Batch]) -> Outcome:
    losses = {}
    with SameDraws():  # type: ignore[no-untyped-call]
        for number, batch in enumerate(batches):
            output = model(*batch.args, **batch.kwargs)
            total = grain_loss(job, output, batch)
            torch.autograd.backward(total)
            losses[f"grain {number}"] = total.detach()
    return Outcome(losses, _gradients([model]), dict(model.named_buffers()))


def run_stages(job: Job, layered: LayeredModel, state: dict[str, Tensor], batches: list[Batch]) -> Outcome:
    num_stages = min(MOST_STAGES, layered.num_layers)
    cuts = [round(stage * layered.num_layers / num_stages) for stage in range(num_stages + 1)]
    stages = [_stage(layered, first, end, state) for first, end in pairwise(cuts)]
    losses = {}
    with SameDraws():  # type: ignore[no-untyped-call]
        for number, batch in enumerate(batches):
            losses[f"grain {number}"] = _run_grain(job, stages, batch)
    buffers = {name: buffer for stage in stages for name, buffer in stage.module.named_buffers() if name in state}
    gradients = apply_hooks(layered.hooks, _gradients([stage.module for stage in stages]))
    return Outcome(losses, gradients, buffers)


def _stage(layered: LayeredModel, first: int, end: int, state: dict[str, Tensor]) -> Stage:
    own = {name: state[name].clone() for name in layered.state_of(first, end)}
    return build_stage(layered, first, end, own, "cpu")


def _run_grain(job: Job, stages: list[Stage], batch: Batch) -> Tensor:
    """Forward through all stages, and backward from the last to the first, as members do."""
    values = flatten_inputs(batch)
    passed: list[tuple[list[Any], tuple[Any, ...]]] = []
    for stage in stages:
        flags = stage.differentiable_inputs
        inputs = [
            value.detach().requires_grad_(flag) if isinstance(value, Tensor) else value
            for value, flag in zip(values, flags, strict=True)
        ]
        outputs = stage.run(*inputs)
        passed.append((inputs, outputs))
        values = list(outputs)
    total = grain_loss(job, stages[-1].model_output(tuple(values)), batch)
    torch.autograd.backward(total)
    for (inputs, _), (_, outputs) in zip(reversed(passed), reversed(passed[:-1]), strict=False):
        pairs = [
            (output, arrived.grad)
            for output, arrived in zip(outputs, inputs, strict=True)
            if isinstance(output, Tensor) and output.requires_grad and arrived.grad is not None
        ]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
    return total.detach()


def _gradients(modules: list[Any]) -> dict[str, Tensor]:
    """Summed over stages, which each find a part of a tied parameter's gradient."""
    totals: dict[str, Tensor] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                totals[name] = totals[name] + parameter.grad if name in totals else parameter.grad
    return totals


def largest_difference(found: Outcome, wanted: Outcome) -> tuple[float, str]:
    """The largest difference relative to its scale, and where it is."""
    worst = (0.0, "")
    for kind, singular in (("losses", "loss"), ("gradients", "gradient"), ("buffers", "buffer")):
        ours, theirs = getattr(found, kind), getattr(wanted, kind)
        if kind == "buffers":  # those that no stage uses have not changed
            theirs = {name: buffer for name, buffer in theirs.items() if name in ours}
        scale = max((_largest(value) for value in theirs.values()), default=0.0)
        for name in dict.fromkeys((*theirs, *ours)):
            worst = max(worst, (_difference(ours.get(name), theirs.get(name), scale), f"{singular} {name}"))
    return worst


def _difference(ours: Tensor | None, theirs: Tensor | None, scale: float) -> float:
    """A gradient that is missing counts as zero."""
    present = theirs if theirs is not None else ours
    assert present is not None
    if not present.numel():
        return 0.0
    ours, theirs = (torch.zeros_like(present) if value is None else value for value in (ours, theirs))
    if ours.shape != theirs.shape:
        return float("inf")
    distances = (ours.double() - theirs.double()).abs().masked_fill(ours == theirs, 0)  # infinities may be equal, too
    difference = float(distances.nan_to_num(float("inf")).max())
    own_scale = max(_largest(theirs), SMALL * scale)
    return difference / own_scale if own_scale else difference


def _largest(tensor: Tensor) -> float:
    """The largest finite entry."""
    sizes = tensor.detach().double().abs()
    return float(sizes[sizes.isfinite()].max()) if bool(sizes.isfinite().any()) else 0.0
