"""Checks of a job's parts, which run on a few samples before anything is started."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zooid.core.errors import JobError, ZooidError
from zooid.core.jobs.job import Job
from zooid.core.jobs.loss_form import LossForm
from zooid.layers.jobs.batches import Batch, collate, spread_indices
from zooid.layers.jobs.iterables import OrderedSamples, is_iterable
from zooid.layers.jobs.loss_trials import find_form
from zooid.layers.jobs.model_builder import buffers_restored, build_model, call
from zooid.layers.jobs.objective import Objective, sum_and_weight
from zooid.layers.stages.autocast import autocasting

EXAMPLE_SIZE = 2
"""Number of samples in an example; a dynamic batch dimension cannot be traced from one."""
SHARED_MEMORY = Path("/dev/shm")
"""Where worker processes hand over samples; it does not exist in AWS Lambda functions."""
_NUM_OTHER_PAIRS = 3
"""Number of pairs of samples, besides the example, on which a loss is tried."""


@dataclass(frozen=True)
class CheckedJob:
    """A job whose parts fit together, with the model and data that were built to check it."""

    job: Job
    data: Any
    model: nn.Module
    example: Batch
    loss_form: LossForm

    @property
    def num_samples(self) -> int:
        return len(self.data)


def default_device() -> torch.device:
    """Return the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_data(job: Job) -> Any:
    """Build the data set, and raise JobError if a step cannot draw from it."""
    if job.data_workers and not SHARED_MEMORY.is_dir():
        raise JobError(
            f"job.data_workers is {job.data_workers}, but this member has no shared memory ({SHARED_MEMORY}), through "
            "which worker processes hand over samples; set job.data_workers to 0, or train where members have it, as "
            "in a container or on a machine"
        )
    data = _indexed_data(job, "data", job.num_samples)
    if len(data) < EXAMPLE_SIZE:
        raise JobError(f"job.data() has {len(data)} samples; at least {EXAMPLE_SIZE} are needed")
    if job.batch_size > len(data):
        raise JobError(
            f"job.batch_size is {job.batch_size}, but job.data() has only {len(data)} samples; "
            f"give a batch size of at most {len(data)}"
        )
    if job.policy is not None and job.policy.max_batch is not None and job.policy.max_batch > len(data):
        raise JobError(
            f"job.scaling may want batches of {job.policy.max_batch} samples, but job.data() has only {len(data)}; "
            f"let it want at most {len(data)}"
        )
    return data


def check_evaluation(job: Job) -> Any:
    """Build the data set to evaluate on; None where the job has none."""
    if job.evaluation is None:
        return None
    data = _indexed_data(job, "evaluation", None)
    if len(data) == 0:
        raise JobError("job.evaluation() has no samples; give some, or leave job.evaluation out")
    return data


def _indexed_data(job: Job, name: str, num_samples: int | None) -> Any:
    """Call the job's function of this name, and return its data set with indices."""
    data = call(name, getattr(job, name))
    if is_iterable(data):
        if job.data_workers > 1:
            raise JobError(
                f"job.data_workers is {job.data_workers}, but job.{name}() is iterable, so that each worker process "
                "would read all of it; give 1 or 0, or return a map-style data set"
            )
        return OrderedSamples(name, data, num_samples)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise JobError(
            f"job.{name}() returned a {type(data).__name__}, which is not a data set; return one with __len__ and "
            "__getitem__(index) -> (inputs, target), or an iterable data set"
        )
    if num_samples is not None:
        raise JobError(
            f"job.num_samples is {num_samples}, but job.{name}() has its own length, {len(data)}; leave out "
            "job.num_samples, which is only for iterable data sets"
        )
    return data


def check_job(job: Job) -> CheckedJob:
    """Build data, model and optimizer, and run the model and the loss; raise JobError if they do not fit together."""
    data = check_data(job)
    example = collate(data, range(EXAMPLE_SIZE), job)
    model = build_model(job)
    _check_optimizer(job, model)
    evaluation = check_evaluation(job)
    for samples in (data, evaluation):
        if isinstance(samples, OrderedSamples):
            samples.check_repeatable()
    with buffers_restored(model), torch.no_grad():
        pairs = [(batch, _checked_output(job, model, batch)) for batch in (example, *_other_pairs(job, data))]
        _check_loss(job, pairs[0][1], example)
        loss_form = find_form(job, model, pairs)
        if evaluation is not None:
            first = collate(evaluation, range(1), job)
            with autocasting(job.autocast, torch.device("cpu")):
                _check_metrics(job, model, first)
    return CheckedJob(job, data, model, example, loss_form)


def _other_pairs(job: Job, data: Any) -> list[Batch]:
    """Return pairs of samples spread over the data, since the first two may be too similar to show their weights."""
    indices = spread_indices(data, 2 * _NUM_OTHER_PAIRS)
    half = len(indices) // 2
    return [collate(data, pair, job) for pair in zip(indices[:half], indices[half : 2 * half], strict=True)]


def _checked_output(job: Job, model: nn.Module, batch: Batch) -> Any:
    with autocasting(job.autocast, torch.device("cpu")):
        output = _forward(model, batch)
    _check_numbers("the model's output", output, batch)
    return output


def _forward(model: nn.Module, example: Batch, data: str = "data") -> Any:
    try:
        return model(*example.args, **example.kwargs)
    except Exception as error:
        shapes = [tuple(value.shape) for value in (*example.args, *example.kwargs.values()) if hasattr(value, "shape")]
        raise JobError(
            f"the model fails on the first {example.num_samples} samples of job.{data}() (inputs of shape {shapes}): "
            f"{type(error).__name__}: {error}; samples must have the inputs that the model's forward takes"
        ) from error


def _check_loss(job: Job, output: Any, example: Batch) -> None:
    try:
        with autocasting(job.autocast, torch.device("cpu")):
            total, _ = Objective(job).sum_and_weight(output, example.target, float(example.num_samples))
    except ZooidError:
        raise
    except Exception as error:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise JobError(
            f"job.loss cannot take the model's output ({got}) and the target: {type(error).__name__}: {error}; "
            "a loss is called as loss(output, target)"
        ) from error
    _check_numbers("job.loss", total, example)


def _check_numbers(what: str, value: Any, example: Batch) -> None:
    """Raise JobError for NaN, which training would only spread."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and bool(leaf.isnan().any()):
            raise JobError(
                f"{what} is not a number (NaN) on the first {example.num_samples} samples of job.data(), with initial "
                "weights; look for NaN in the samples, a division by zero, or the logarithm of a negative number"
            )


def _check_metrics(job: Job, model: nn.Module, example: Batch) -> None:
    output = _forward(model.eval(), example, "evaluation")
    model.train()
    for name, metric in job.metrics.items():
        try:
            sum_and_weight(f"job.metrics[{name!r}]", metric(output, example.target), example.num_samples)
        except ZooidError:
            raise
        except Exception as error:
            raise JobError(
                f"job.metrics[{name!r}] raised {type(error).__name__}: {error}; a metric is called as "
                "metric(output, target) and returns a mean over the samples, or (sum, weight)"
            ) from error


def _check_optimizer(job: Job, model: nn.Module) -> None:
    try:
        optimizer = job.optimizer(list(model.named_parameters()))
    except Exception as error:
        raise JobError(
            f"job.optimizer raised {type(error).__name__}: {error}; it is called with named parameters, "
            "for example lambda named: torch.optim.AdamW(named, lr=1e-3)"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise JobError(f"job.optimizer returned a {type(optimizer).__name__}; it must return a torch.optim.Optimizer")
    if _needs_closure(optimizer):
        raise JobError(
            f"job.optimizer returned a {type(optimizer).__name__}, whose step needs a closure that computes the loss "
            "again; a step here runs every sample once: give an optimizer without a closure, such as torch.optim.AdamW"
        )
    build_scheduler(job, optimizer)


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def build_scheduler(job: Job, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
    """Build the job's learning-rate scheduler, which follows the number of steps or the results of evaluations."""
    if job.scheduler is None:
        return None
    try:
        scheduler = job.scheduler(optimizer)
    except Exception as error:
        raise JobError(
            f"job.scheduler raised {type(error).__name__}: {error}; it is called with the optimizer, for example "
            "lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)"
        ) from error
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise JobError(f"job.scheduler returned a {type(scheduler).__name__}; give a torch.optim.lr_scheduler")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        _check_plateau(job, scheduler)
    return scheduler


def _check_plateau(job: Job, scheduler: torch.optim.lr_scheduler.ReduceLROnPlateau) -> None:
    if job.evaluation is None:
        raise JobError(
            "job.scheduler returned a ReduceLROnPlateau, which follows the results of evaluations, but the job has "
            "none; give job.evaluation, or a scheduler that follows the number of steps"
        )
    mode = "min" if job.monitor is None else job.monitor.mode
    if scheduler.mode != mode:
        raise JobError(
            f"job.scheduler returned a ReduceLROnPlateau of mode {scheduler.mode!r}, but the value it follows is "
            f"better when {'smaller' if mode == 'min' else 'larger'}; give it mode={mode!r}, or name a metric and its "
            "mode in job.monitor"
        )
