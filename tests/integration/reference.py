"""What a run must come to: the same grains through the composed layers, one after the other, in one process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tests.integration.jobs import traced_job
from zooid.core.jobs.job import Job, load_job
from zooid.core.runs.batch_history import BatchPiece
from zooid.layers import (
    Objective,
    autocasting,
    build_model,
    build_scheduler,
    build_stage,
    check_data,
    collate,
    flatten_inputs,
    grain_randomness,
    is_in_order,
    seed_data,
)
from zooid.schedule.samples import SamplePlan
from zooid.worker.checkpoints.contents import load_checkpoint
from zooid.worker.state.loss_scaling import LossScale


@dataclass(frozen=True)
class Trained:
    """Losses of all steps, and the state dict after the last."""

    losses: tuple[float, ...]
    state: dict[str, torch.Tensor]
    skipped: tuple[bool, ...] = ()
    """Of each step, whether its gradients overflowed; where losses are scaled."""
    rates: tuple[float, ...] = ()
    """The learning rate of each step."""

    def loss_difference(self, losses: tuple[float, ...]) -> float:
        """The largest between two runs of equal length."""
        return max(abs(own - other) for own, other in zip(self.losses, losses, strict=True))

    def weight_difference(self, checkpoint: str) -> float:
        """The largest between this state and a checkpoint, which must have the same names and types."""
        other = load_checkpoint(checkpoint)
        assert set(other) == set(self.state)
        for name, tensor in self.state.items():
            assert (other[name].dtype, other[name].shape) == (tensor.dtype, tensor.shape), name
        return max(float((tensor - other[name]).abs().max()) for name, tensor in self.state.items())


@contextmanager
def _default_dtype_kept() -> Iterator[None]:
    """Restore the default dtype, which a job file may set, for the tests that follow in this process."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@_default_dtype_kept()
def train_composed_layers(
    job_file: Path,
    device: str = "cpu",
    *,
    num_steps: int | None = None,
    batches: tuple[BatchPiece, ...] = (),
    observe: Callable[[nn.Module], None] = lambda model: None,
) -> Trained:
    """Grain by grain, with the random numbers that belong to each grain, and all that a job may ask for.

    Every grain of a step begins with the buffers that the step began with; the step adds the mean of what the grains
    changed, and the sum where buffers are counts. Ends after `num_steps`, if they are given; `observe` is called after
    every step.
    """
    job, data, samples = _load(job_file)
    samples.follow(batches)
    model = build_model(job).to(device)
    checked, layered = traced_job(job_file)
    stage = build_stage(layered, 0, layered.num_layers, {**_parameters(model), **dict(model.named_buffers())}, device)
    optimizer = job.optimizer(list(model.named_parameters()))
    scheduler = build_scheduler(job, optimizer)
    scale = LossScale.for_job(job.autocast)
    objective = Objective(job, checked.loss_form)
    losses, skipped, rates = [], [], []
    for step in range(samples.num_steps if num_steps is None else num_steps):
        rate_factor = next((piece.rate_factor for piece in reversed(batches) if piece.first_step <= step), 1.0)
        rates.append(float(optimizer.param_groups[0]["lr"]) * rate_factor)
        optimizer.zero_grad()
        loss_sum = weight = 0.0
        nominal_weight = objective.form.nominal_weight(samples.step_size(step))
        grains = samples.grains(step)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        changes = {name: torch.zeros_like(buffer) for name, buffer in before.items() if buffer.dtype != torch.bool}
        for number, indices in enumerate(grains):
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            seed_data(job.seed, step, number)
            batch = collate(data, indices, job).to(device)
            with autocasting(job.autocast, torch.device(device)):
                with grain_randomness(job.seed, step, number):
                    values = stage.run(*flatten_inputs(batch))
                output = stage.model_output(values)
                own_weight = objective.weight(batch, samples.step_size(step))
                grain_sum, grain_weight = objective.sum_and_weight(output, batch.target, own_weight)
            torch.autograd.backward(grain_sum * (scale.factor / nominal_weight))
            loss_sum += float(grain_sum.detach())
            weight += grain_weight
            for name, buffer in model.named_buffers():
                if name in changes:
                    changes[name] += buffer - before[name]
        for name, buffer in model.named_buffers():
            if name in changes:
                change = changes[name] / len(grains) if buffer.is_floating_point() else changes[name]
                buffer.copy_(before[name] + change)
        trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
        for parameter in trained:
            assert parameter.grad is not None
            parameter.grad *= nominal_weight / weight / scale.factor
        is_finite = all(bool(parameter.grad.isfinite().all()) for parameter in trained if parameter.grad is not None)
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, job.clip_norm)
        if is_finite:
            own_rates = [group["lr"] for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, own_rates, strict=True):
                group["lr"] = rate * rate_factor
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, own_rates, strict=True):
                group["lr"] = rate
        if job.autocast == "fp16":
            scale = scale.after(is_finite)
            skipped.append(not is_finite)
        if isinstance(scheduler, ReduceLROnPlateau):
            every = job.evaluate_every
            if (step + 1) % every == 0 if every else samples.ends_epoch(step + 1):
                scheduler.step(evaluation_loss(job, model))
        elif scheduler is not None:
            scheduler.step()
        losses.append(loss_sum / weight)
        observe(model)
    return Trained(tuple(losses), model.cpu().state_dict(), tuple(skipped), tuple(rates))


def evaluation_loss(job: Job, model: nn.Module) -> float:
    """The plain model's, in evaluation mode, on all samples at once."""
    assert job.evaluation is not None
    assert job.loss is not None
    data = job.evaluation()
    batch = collate(data, range(len(data)), job)
    with torch.no_grad():
        loss = float(job.loss(model.eval()(*batch.args), batch.target))
    model.train()
    return loss


def train_untouched_model(job_file: Path) -> Trained:
    """The user's own model and loss, a whole step at once: no layers, no grains."""
    job, data, samples = _load(job_file)
    model = build_model(job)
    optimizer = job.optimizer(list(model.named_parameters()))
    losses = []
    for step in range(samples.num_steps):
        batch = collate(data, [index for grain in samples.grains(step) for index in grain], job)
        optimizer.zero_grad()
        output = model(*batch.args, **batch.kwargs)
        loss = output.loss if job.loss is None else job.loss(output, batch.target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return Trained(tuple(losses), model.state_dict())


def sample_plan(
    job: Job, num_samples: int, shard_sizes: tuple[int, ...] = (), *, is_in_order: bool = False
) -> SamplePlan:
    """Which samples each step of a job with a fixed grain owns."""
    assert job.grain_size is not None
    return SamplePlan.of(job, num_samples, job.grain_size, shard_sizes, is_in_order=is_in_order)


def _load(job_file: Path) -> tuple[Job, Any, SamplePlan]:
    job = load_job(job_file)
    data = check_data(job)
    return job, data, sample_plan(job, len(data), getattr(data, "shard_sizes", ()), is_in_order=is_in_order(data))


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())
