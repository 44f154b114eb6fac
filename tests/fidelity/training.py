"""Trains a job in plain PyTorch, and in stages and replicas within one process; the weights must be equal."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zooid.core.jobs.job import Job
from zooid.layers import (
    Batch,
    LayeredModel,
    Objective,
    Stage,
    apply_hooks,
    build_model,
    build_stage,
    check_data,
    collate,
    flatten_inputs,
    trace_job,
)
from zooid.schedule.samples import SamplePlan, split_grains

Weights = dict[str, Tensor]


def train_plainly(job: Job, *, grain_by_grain: bool) -> Weights:
    """The user's own model in a plain loop: each step in one batch, or in grains whose gradients add up.

    Every grain begins with the buffers of the step before, and the step adds the mean of what the grains changed.
    """
    model = build_model(job)
    optimizer = job.optimizer(list(model.named_parameters()))
    data, samples = _samples(job)
    for step in range(samples.num_steps):
        optimizer.zero_grad()
        grains = samples.grains(step)
        if not grain_by_grain:
            grains = [np.concatenate(grains)]
        buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        statistics = _Statistics([buffers])
        for number, indices in enumerate(grains):
            statistics.begin_grain(buffers)
            seed_grain(step, number)
            batch = collate(data, indices, job)
            output = model(*batch.args, **batch.kwargs)
            loss = output.loss if job.loss is None else job.loss(output, batch.target)
            (loss * (batch.num_samples / samples.step_size(step))).backward()
            statistics.end_grain(buffers)
        statistics.apply(len(grains))
        optimizer.step()
    return _floating(model.state_dict())


def train_in_stages(job: Job, layered: LayeredModel, num_replicas: int, num_stages: int) -> Weights:
    """The same in stages and replicas, with what they exchange passed on by hand."""
    data, samples = _samples(job)
    example = collate(data, range(2), job)
    initial = build_model(job)
    state = {**dict(initial.named_parameters()), **dict(initial.named_buffers())}
    replicas = [_stages(_own(job, layered, example), state, num_stages) for _ in range(num_replicas)]
    optimizers = [[job.optimizer(list(stage.module.named_parameters())) for stage in stages] for stages in replicas]
    for step in range(samples.num_steps):
        grains = samples.grains(step)
        shares = split_grains(len(grains), (1,) * num_replicas)
        buffers = [_buffers(stages) for stages in replicas]
        statistics = _Statistics(buffers)
        for stages, own_buffers, own in zip(replicas, buffers, shares, strict=True):
            for number in own:
                statistics.begin_grain(own_buffers)
                seed_grain(step, number)
                _run_grain(job, stages, collate(data, grains[number], job), samples.step_size(step))
                statistics.end_grain(own_buffers)
        _apply(layered, replicas, optimizers)
        statistics.apply(len(grains))
    found = {name: state[name] for name in layered.unused_names}
    for stage in replicas[0]:
        named = stage.module.state_dict().items()
        found |= {name: tensor for name, tensor in named if name in layered.persistent_names}
    return found | {alias: found[name] for alias, name in layered.aliases.items()}


def seed_grain(step: int, number: int) -> None:
    """The same random numbers for a grain on both sides, whatever draws them."""
    torch.manual_seed(1000 * step + number)
    np.random.seed(1000 * step + number)
    random.seed(1000 * step + number)


def _samples(job: Job) -> tuple[Any, SamplePlan]:
    data = check_data(job)
    assert job.grain_size is not None
    return data, SamplePlan.of(job, len(data), job.grain_size)


def _own(job: Job, layered: LayeredModel, example: Batch) -> LayeredModel:
    """Every replica that trains the whole model has a model of its own."""
    return layered if layered.whole is None else trace_job(job, example, why_whole=layered.why_whole)


def _stages(layered: LayeredModel, state: Weights, num_stages: int) -> list[Stage]:
    cuts = [layered.num_layers * number // num_stages for number in range(num_stages + 1)]

    def own() -> Weights:
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    return [build_stage(layered, first, end, own(), "cpu") for first, end in pairwise(cuts)]


def _run_grain(job: Job, stages: Sequence[Stage], batch: Batch, step_size: int) -> None:
    passed: list[tuple[list[Any], tuple[Any, ...]]] = []
    values: Sequence[Any] = flatten_inputs(batch)
    for stage in stages:
        flags = stage.differentiable_inputs
        inputs = [v.detach().requires_grad_(flag) if flag else v for v, flag in zip(values, flags, strict=True)]
        values = stage.run(*inputs)
        passed.append((inputs, tuple(values)))
    output = stages[-1].model_output(tuple(values))
    objective = Objective(job)
    total, _ = objective.sum_and_weight(output, batch.target, objective.weight(batch, step_size))
    torch.autograd.backward(total / step_size)
    for (_, sent), (received, _) in reversed(list(pairwise(passed))):
        pairs = [(s, r.grad) for s, r in zip(sent, received, strict=True) if r.grad is not None and s.requires_grad]
        torch.autograd.backward([value for value, _ in pairs], [gradient for _, gradient in pairs])


def _apply(layered: LayeredModel, replicas: list[list[Stage]], optimizers: list[list[torch.optim.Optimizer]]) -> None:
    """Sum gradients over replicas, and over stages that share a parameter; then hooks, then the optimizers."""
    total: Weights = {}
    for parameter in _each_parameter(replicas):
        name, tensor = parameter
        if tensor.grad is not None:
            total[name] = tensor.grad.clone() if name not in total else total[name] + tensor.grad
    total = apply_hooks(layered.hooks, total)
    for name, tensor in _each_parameter(replicas):
        tensor.grad = total[name].clone() if name in total else None
        for hook in layered.hooks.after_accumulation.get(name, ()):
            hook(tensor)
    for of_replica in optimizers:
        for optimizer in of_replica:
            optimizer.step()
            optimizer.zero_grad()


def _each_parameter(replicas: list[list[Stage]]) -> list[tuple[str, nn.Parameter]]:
    return [named for stages in replicas for stage in stages for named in stage.module.named_parameters()]


def _buffers(stages: Sequence[Stage]) -> Weights:
    """What forwards may change, of all stages of a replica; each belongs to one stage."""
    return {
        name: buffer
        for stage in stages
        for name, buffer in stage.module.named_buffers()
        if name in stage.model.persistent_names and buffer.is_floating_point()
    }


class _Statistics:
    """Sums up what the grains of one step change, whichever replica computes them."""

    def __init__(self, replicas: Sequence[Weights]) -> None:
        self._replicas = replicas
        self._before = {name: buffer.clone() for name, buffer in replicas[0].items()}
        self._changes = {name: torch.zeros_like(buffer) for name, buffer in self._before.items()}

    def begin_grain(self, buffers: Weights) -> None:
        for name, buffer in buffers.items():
            buffer.copy_(self._before[name])

    def end_grain(self, buffers: Weights) -> None:
        for name, buffer in buffers.items():
            self._changes[name] += buffer - self._before[name]

    def apply(self, num_grains: int) -> None:
        for buffers in self._replicas:
            for name, buffer in buffers.items():
                buffer.copy_(self._before[name] + self._changes[name] / num_grains)


def _floating(state: Weights) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in state.items() if tensor.is_floating_point()}


def largest_difference(found: Weights, wanted: Weights) -> float:
    return max(float((found[name].detach() - tensor).abs().max()) for name, tensor in wanted.items())


Layouts = Sequence[tuple[int, int]]
Train = Callable[..., Weights]
