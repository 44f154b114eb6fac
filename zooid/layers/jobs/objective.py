"""Converts every form of a loss or metric into one: a sum and its weight, which both add up over grains."""

from dataclasses import dataclass
from typing import Any

import torch

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.loss_form import LossForm
from zooid.layers.jobs.batches import Batch

_FORMS = (
    "a loss is (output, target) -> scalar tensor, the mean over the samples; or -> (sum, weight), two scalars, "
    "where samples weigh differently; a metric is the same"
)
_MEAN = LossForm()


@dataclass(frozen=True)
class Objective:
    """A job's loss, with the form that was found for it."""

    job: Job
    form: LossForm = _MEAN

    def weight(self, batch: Batch, num_samples: int) -> float:
        """Return the weight of a grain in a step or evaluation of `num_samples`, unless the loss itself returns one.

        Summed losses are finally divided by 1, so that the weights of all grains must add up to 1. Labels are counted
        most cheaply in main memory, where they were read.
        """
        if self.form.kind == "sum":
            return batch.num_samples / num_samples
        if self.form.kind == "label_mean":
            return float(count_labels(self.form, labels_of(self.form, batch)))
        return float(batch.num_samples)

    def sum_and_weight(self, output: Any, target: Any, weight: float) -> tuple[torch.Tensor, float]:
        """Return the differentiable summed loss of a grain, and its weight, which the loss itself may return."""
        value = loss_value(self.job, output, target)
        if isinstance(value, tuple) and len(value) == 2:
            return _pair("job.loss", value)
        scalar = _scalar("job.loss", value)
        if self.form.kind == "sum":
            return scalar, weight
        if weight == 0:  # the mean over no labels is NaN, but counts for nothing
            return torch.where(scalar.isnan(), torch.zeros_like(scalar), scalar) * 0.0, weight
        return scalar * weight, weight


def loss_value(job: Job, output: Any, target: Any) -> Any:
    """Return the value of the job's loss, or the loss in the model's output."""
    if job.loss is not None:
        return job.loss(output, target)
    value = getattr(output, "loss", None)
    if value is None:
        raise JobError(
            f"job.loss is None, but the model's output ({type(output).__name__}) has no .loss; "
            "give a loss, or inputs with which the model computes its own"
        )
    return value


def labels_of(form: LossForm, batch: Batch) -> torch.Tensor:
    """Return the labels over which the loss is a mean."""
    labels = batch.kwargs[form.labels] if form.labels else batch.target
    assert isinstance(labels, torch.Tensor)
    return labels


def count_labels(form: LossForm, labels: torch.Tensor) -> int:
    """Return the number of labels that are not ignored."""
    counted = labels[..., 1:] if form.is_shifted else labels
    return int((counted != form.ignored).sum())


def sum_and_weight(what: str, value: Any, num_samples: int) -> tuple[torch.Tensor, float]:
    """Return the sum and weight of a value, which is a mean over samples or already such a pair."""
    if isinstance(value, tuple) and len(value) == 2:
        return _pair(what, value)
    return _scalar(what, value) * num_samples, float(num_samples)


def _pair(what: str, value: tuple[Any, Any]) -> tuple[torch.Tensor, float]:
    total, weight = value
    return _scalar(what, total), float(weight)


def _scalar(what: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise JobError(f"{what} returned a {type(value).__name__}; {_FORMS}")
    if value.numel() != 1:
        raise JobError(
            f"{what} returned a tensor of shape {tuple(value.shape)}; {_FORMS}. Is reduction='none' set somewhere?"
        )
    if not value.is_floating_point():
        raise JobError(f"{what} returned a tensor of {value.dtype}; it must be a floating-point scalar")
    return value.reshape(())
