"""Pairs of samples whose rows, alone, together or repeated, can be given to a job's loss."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from zooid.core.errors import JobError, ZooidError
from zooid.core.jobs.job import Job
from zooid.layers.disk_tensors import is_on_disk, to_disk
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.model_builder import modes_restored
from zooid.layers.jobs.objective import loss_value

Rows = Sequence[int]


class NotTried(JobError):
    """The loss cannot be evaluated on the rows of a pair."""


@dataclass(frozen=True)
class SamplePair:
    """Two samples of which any rows, with repetition, can be given to the loss."""

    batch: Batch
    evaluate: Callable[[Rows, Batch], Any]
    """(rows of the pair, its batch, possibly with other labels) -> the value of the loss"""
    is_model_run: bool
    """Whether each evaluation runs the model, which may take long."""

    def loss(self, rows: Rows, batch: Batch | None = None) -> Any:
        """Return the value of the loss for these rows; raise NotTried where the loss fails on them."""
        try:
            return self.evaluate(rows, batch or self.batch)
        except ZooidError:
            raise
        except Exception as error:
            raise NotTried(
                f"job.loss fails on {len(rows)} samples, although not on two: {type(error).__name__}: {error}; it must "
                "take any number of samples, since grains have different sizes"
            ) from error

    def is_random(self) -> bool:
        """Whether the loss draws random numbers; runs of the model are seeded, and so never random."""
        values = []
        for seed in (1, 2) if not self.is_model_run else ():
            torch.manual_seed(seed)
            values.append(_numbers(self.loss((0, 1))))
        return len({*values}) > 1


def output_pair(job: Job, batch: Batch, output: Any) -> SamplePair:
    """Return a pair that takes rows of the model's output for both samples, with the batch statistics of both."""

    def evaluate(rows: Rows, changed: Batch) -> Any:
        return loss_value(job, _rows(_widened(output), rows), _rows(changed.target, rows))

    return SamplePair(batch, evaluate, is_model_run=False)


def noisy_pair(job: Job, batch: Batch, output: Any) -> SamplePair | None:
    """Return a pair with noise added to the output; None where the loss does not take it, as for probabilities.

    With initial weights all losses may be equal, and say nothing about the weights of samples.
    """
    generator = torch.Generator().manual_seed(0)

    def disturbed(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf + torch.randn(leaf.shape, generator=generator).to(leaf.dtype) if is_real else leaf

    pair = output_pair(job, batch, tree_map(disturbed, output))
    try:
        value = pair.evaluate((0, 1), batch)
    except Exception:  # noqa: BLE001  # whatever it is, this loss is tried without noise
        return None
    return pair if all(map(math.isfinite, _numbers(value))) else None


def model_pair(job: Job, batch: Batch, model: nn.Module) -> SamplePair:
    """Return a pair that runs the model on rows of its samples, in evaluation mode, where samples are independent."""

    def evaluate(rows: Rows, changed: Batch) -> Any:
        args, kwargs, target = _rows((changed.args, changed.kwargs, changed.target), rows)
        torch.manual_seed(0)
        with modes_restored(model), _in_single_precision(model):
            output = model.eval()(*args, **kwargs)
        if job.loss is None and getattr(output, "loss", None) is None:  # some models compute none in evaluation
            torch.manual_seed(0)
            output = model(*args, **kwargs)
        return loss_value(job, output, target)

    return SamplePair(batch, evaluate, is_model_run=True)


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value if isinstance(value, tuple) else (value,)))


def _rows(value: Any, rows: Rows) -> Any:
    """Return these rows of every tensor that has one row for each of the two samples."""

    def chosen(leaf: Any) -> Any:
        has_rows = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == 2
        return leaf[list(rows)] if has_rows else leaf

    return tree_map(chosen, value)


def _widened(output: Any) -> Any:
    """Return the output in single precision at least, so that rounding does not hide the weights of samples."""
    return tree_map(lambda leaf: leaf.float() if _is_short(leaf) else leaf, output)


def _is_short(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)


@contextmanager
def _in_single_precision(model: nn.Module) -> Iterator[None]:
    """While inside, 16-bit weights are in single precision; those on disk stay on disk."""
    short = {tensor: tensor.data for tensor in (*model.parameters(), *model.buffers()) if _is_short(tensor)}
    for tensor, values in short.items():
        tensor.data = to_disk(values.float()) if is_on_disk(values) else values.float()
    try:
        yield
    finally:
        for tensor, values in short.items():
            tensor.data = values
