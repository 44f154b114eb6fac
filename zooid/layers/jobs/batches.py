"""Batches: samples of a data set as the tensors that a model takes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

from zooid.core.errors import JobError, ZooidError
from zooid.core.jobs.job import Job
from zooid.layers.jobs.iterables import is_in_order
from zooid.layers.jobs.sample_forms import inputs_and_target, reject_text, stack

_NUM_SIZES_TRIED = 16
"""Number of samples that are collated alone, to find out whether the sizes of batches depend on the samples."""


@dataclass(frozen=True)
class Batch:
    """Collated samples: `args` and `kwargs` for the model, `target` for the loss."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    num_samples: int

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device; copies from pinned memory to a GPU are asynchronous."""
        kind = torch.device(device).type
        if kind == "cpu":  # samples are always read into main memory
            return self
        return self.with_each(lambda tensor: tensor.to(device, non_blocking=kind == "cuda"))

    def resized(self, num_samples: int) -> "Batch":
        """Return a batch of this many samples, by leaving out or repeating some."""
        indices = torch.arange(num_samples) % self.num_samples
        resized = self.with_each(lambda tensor: tensor[indices] if tensor.dim() else tensor)
        return replace(resized, num_samples=num_samples)

    def with_values(self) -> "Batch":
        """Return the batch with zeros in place of tensors on `meta`."""
        return self.with_each(lambda tensor: torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor)

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory; a DataLoader calls this method by its name."""
        return self.with_each(lambda tensor: tensor.pin_memory())

    def with_each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        """Return the batch with a function applied to every tensor."""

        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, torch.Tensor) else value

        args, kwargs, target = tree_map(changed, (self.args, self.kwargs, self.target))
        return Batch(args, kwargs, target, self.num_samples)


def collate(data: Any, indices: Iterable[int], job: Job) -> Batch:
    """Return the samples at these indices as one batch, from the job's `collate` or stacked as by a DataLoader."""
    numbers = [int(index) for index in indices]
    samples = [_load(data, number) for number in numbers]
    if job.collate is not None:
        return _collated(job, samples)
    has_loss = job.loss is not None
    parts = [
        inputs_and_target(sample, f"job.data()[{number}]", has_loss=has_loss)
        for number, sample in zip(numbers, samples, strict=True)
    ]
    inputs = stack("the inputs", [part[0] for part in parts])
    has_target = parts[0][1] is not None
    return _batch(inputs, stack("the targets", [part[1] for part in parts]) if has_target else None, len(parts))


def flatten_inputs(batch: Batch) -> list[Any]:
    """Return the model's inputs in the order in which a trace numbers them."""
    return tree_flatten((batch.args, batch.kwargs))[0]


def spread_indices(data: Any, count: int) -> list[int]:
    """Return indices spread over a data set, or the first ones where it is read in order."""
    num_samples = len(data)
    count = min(count, num_samples)
    if is_in_order(data):
        return list(range(count))
    return [number * num_samples // count for number in range(count)]


def varying_sizes(job: Job, data: Any, evaluation: Any = None) -> str:
    """Return why the sizes of a batch depend on more than its number of samples, judged by a few; "" if they do not.

    In traced layers, and in messages between stages, all sizes are fixed but for the number of samples.
    """
    expected = _sizes(collate(data, range(2), job))
    for name, samples in (("data", data), ("evaluation", evaluation)):
        # Without a job.collate, samples of different sizes cannot be stacked anyway.
        count = _NUM_SIZES_TRIED if job.collate is not None else 1
        for index in spread_indices(samples, count) if samples is not None else ():
            sizes = _sizes(collate(samples, [index], job))
            if sizes != expected:
                return (
                    f"inputs have different sizes: {_format_sizes(expected)} for the first two samples of job.data(), "
                    f"and {_format_sizes(sizes)} for sample {index} of job.{name}(); pad all samples to one length"
                )
    return ""


def _sizes(batch: Batch) -> list[tuple[int, ...]]:
    """Return the sizes of a batch's inputs, without the number of samples."""
    return [tuple(value.shape[1:]) for value in flatten_inputs(batch) if isinstance(value, torch.Tensor)]


def _format_sizes(sizes: list[tuple[int, ...]]) -> str:
    return ", ".join("×".join(map(str, size)) or "a number" for size in sizes)


def _batch(inputs: Any, target: Any, num_samples: int) -> Batch:
    if isinstance(inputs, dict):
        return Batch((), inputs, target, num_samples)
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return Batch(args, {}, target, num_samples)


def _collated(job: Job, samples: list[Any]) -> Batch:
    assert job.collate is not None
    try:
        value = job.collate(samples)
    except ZooidError:
        raise
    except Exception as error:
        raise JobError(
            f"job.collate raised {type(error).__name__}: {error}; it is called with a list of {len(samples)} samples "
            "of job.data(), and must return a batch for any number of samples from 1 on"
        ) from error
    inputs, target = inputs_and_target(value, "what job.collate returns", has_loss=job.loss is not None)
    reject_text("the inputs that job.collate returns", inputs)
    inputs, target = tree_map(_as_tensor, (inputs, target))
    batch = _batch(inputs, target, len(samples))
    for tensor in flatten_inputs(batch):
        if isinstance(tensor, torch.Tensor) and (tensor.dim() == 0 or len(tensor) != len(samples)):
            raise JobError(
                f"job.collate returned an input of shape {tuple(tensor.shape)} for {len(samples)} samples; dimension 0 "
                "of every input must be the number of samples"
            )
    return batch


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _load(data: Any, index: int) -> Any:
    try:
        return data[index]
    except ZooidError:
        raise  # the message already says what to do, for example for shards
    except Exception as error:
        raise JobError(
            f"job.data()[{index}] raised {type(error).__name__}: {error}; correct or leave out this sample"
        ) from error
