"""The forms of a loss or metric as one: a sum and the weight to divide it by, which add up over grains."""

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
    """A job's loss in the form that it was found to have."""

    job: Job
    form: LossForm = _MEAN

    def weight(self, batch: Batch, num_samples: int) -> float:
        """What a grain weighs in a step, or an evaluation, of so many samples; where the loss does not say it itself.

        Sums are divided by 1 in the end, so that the weights of all grains have to be 1 together. To count labels is
        cheapest where they have been read: on the processor.
        """
        if self.form.kind == "sum":
            return batch.num_samples / num_samples
        if self.form.kind == "label_mean":
            return float(count_labels(self.form, labels_of(self.form, batch)))
        return float(batch.num_samples)

    def sum_and_weight(self, output: Any, target: Any, weight: float) -> tuple[torch.Tensor, float]:
        """The summed loss of a grain, differentiable, and its weight: the given one, unless the loss returns one."""
        value = loss_value(self.job, output, target)
        if isinstance(value, tuple) and len(value) == 2:
            return _pair("job.loss", value)
        scalar = _scalar("job.loss", value)
        if self.form.kind == "sum":
            return scalar, weight
        if weight == 0:  # the mean over no labels is not a number, but counts for nothing
            return torch.where(scalar.isnan(), torch.zeros_like(scalar), scalar) * 0.0, weight
        return scalar * weight, weight


def loss_value(job: Job, output: Any, target: Any) -> Any:
    """What the loss returns, or the loss that the model's output carries."""
    if job.loss is not None:
        return job.loss(output, target)
    value = getattr(output, "loss", None)
    if value is None:
        raise JobError(
            f"job.loss is None, but the model's output ({type(output).__name__}) carries no .loss; "
            "give a loss, or inputs with which the model computes its own"
        )
    return value


def labels_of(form: LossForm, batch: Batch) -> torch.Tensor:
    """The labels that a mean over labels is taken over."""
    labels = batch.kwargs[form.labels] if form.labels else batch.target
    assert isinstance(labels, torch.Tensor)
    return labels


def count_labels(form: LossForm, labels: torch.Tensor) -> int:
    """How many of the labels count."""
    counted = labels[..., 1:] if form.is_shifted else labels
    return int((counted != form.ignored).sum())


def sum_and_weight(what: str, value: Any, num_samples: int) -> tuple[torch.Tensor, float]:
    """From a mean over samples, or from a sum and its weight."""
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
