"""The forms of a loss or metric as one: a sum over samples and the weight to divide it by."""

from typing import Any

import torch

from zooid.core.errors import JobError
from zooid.core.job import Job

_FORMS = (
    "a loss is (output, target) -> scalar tensor, the mean over the samples; or -> (sum, weight), two scalars, "
    "where samples weigh differently; a metric is the same"
)


def loss_sum_and_weight(job: Job, output: Any, target: Any, num_samples: int) -> tuple[torch.Tensor, float]:
    """The summed loss of a grain, differentiable, and its weight; over a step, sums and weights add up."""
    if job.loss is not None:
        return sum_and_weight("job.loss", job.loss(output, target), num_samples)
    value = getattr(output, "loss", None)
    if value is None:
        raise JobError(
            f"job.loss is None, but the model's output ({type(output).__name__}) carries no .loss; "
            "give a loss, or inputs with which the model computes its own"
        )
    return sum_and_weight("job.loss", value, num_samples)


def sum_and_weight(what: str, value: Any, num_samples: int) -> tuple[torch.Tensor, float]:
    """From a mean over samples, or from a sum and its weight."""
    if isinstance(value, tuple) and len(value) == 2:
        total, weight = value
        return _scalar(what, total), float(weight)
    return _scalar(what, value) * num_samples, float(num_samples)


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
