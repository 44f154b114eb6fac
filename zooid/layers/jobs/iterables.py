"""Iterable data sets, whose samples can only be read one after the other, as data sets with indices."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset

from zooid.core.errors import JobError
from zooid.layers.stages.randomness import generators_restored, seed_generators

_NUM_COMPARED = 8
"""Number of samples that are read twice when a job is checked; a new shuffle shows among the first samples."""


def is_iterable(data: Any) -> bool:
    """Whether samples of a data set have no index."""
    is_map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return isinstance(data, (IterableDataset, DataLoader)) or (hasattr(data, "__iter__") and not is_map_style)


def is_in_order(data: Any) -> bool:
    """Whether a checked data set is read in order, and not shuffled."""
    return isinstance(data, OrderedSamples)


class OrderedSamples:
    """An iterable data set with indices; each member reads all samples and keeps those of its grains.

    Sample p of epoch e has the index e · num_samples + p. So an index means the same to every member, and reading may
    begin anywhere.
    """

    def __init__(self, name: str, data: Any, num_samples: int | None) -> None:
        """`name` is the field of the job that returned the data set."""
        self._name = name
        self._data = data
        self._num_samples = _checked_size(name, data, num_samples)
        self._iterator: Iterator[Any] = iter(())
        self._num_read = 0
        self._iterator_key: tuple[int, int] | None = None
        """Process and epoch of the iterator; after a fork, parent and child may share a file position."""

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        epoch, position = divmod(index, self._num_samples)
        if self._iterator_key != (os.getpid(), epoch) or position < self._num_read:
            self._begin(epoch)
        while True:
            sample = self._next(epoch)
            if self._num_read > position:
                return sample

    def check_repeatable(self) -> None:
        """Raise JobError if the first samples differ when they are read again with other random seeds."""
        with generators_restored():
            passes = [self._first_samples(seed) for seed in (1, 2)]
        for position, (first, second) in enumerate(zip(*passes, strict=True)):
            if not _is_same(first, second):
                raise JobError(
                    f"sample {position} of job.{self._name}() differs when it is read again; each member reads the "
                    "samples by itself, so that they must be the same in every pass of an epoch: shuffle and augment "
                    "with a generator that is seeded in __iter__, from the epoch if there is a set_epoch(epoch)"
                )

    def _first_samples(self, seed: int) -> list[Any]:
        seed_generators(seed)
        self._iterator_key = None
        return [self[position] for position in range(min(_NUM_COMPARED, self._num_samples))]

    def _begin(self, epoch: int) -> None:
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        self._iterator = iter(self._data)
        self._num_read = 0
        self._iterator_key = (os.getpid(), epoch)

    def _next(self, epoch: int) -> Any:
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise JobError(
                f"job.{self._name}() ended after {self._num_read} samples of epoch {epoch}, but {self._num_samples} "
                f"are expected; correct {'job.num_samples' if self._name == 'data' else 'its length'}, or yield more"
            ) from None
        except Exception as error:
            raise JobError(
                f"job.{self._name}() raised {type(error).__name__} at position {self._num_read} of epoch {epoch}: "
                f"{error}; correct or leave out this sample"
            ) from error
        self._num_read += 1
        return sample


def _checked_size(name: str, data: Any, num_samples: int | None) -> int:
    if isinstance(data, DataLoader):
        raise JobError(
            f"job.{name}() returned a DataLoader; return its data set instead, and give its batch_size, collate_fn and "
            "num_workers as job.batch_size, job.collate and job.data_workers"
        )
    if isinstance(data, Iterator):
        raise JobError(
            f"job.{name}() returned a {type(data).__name__}, which can be read only once; return an object whose "
            "__iter__ starts again from the beginning, such as a torch.utils.data.IterableDataset"
        )
    size = _length(data)
    if num_samples is None and size is None:
        fix = "job.num_samples, the number of samples in an epoch" if name == "data" else "it a __len__, or a list"
        raise JobError(f"job.{name}() returned a {type(data).__name__}, an iterable without a length; give {fix}")
    if num_samples is not None and size is not None and num_samples > size:
        raise JobError(f"job.num_samples is {num_samples}, but job.{name}() has {size} samples; give at most {size}")
    return num_samples if num_samples is not None else size or 0


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # also raised by an IterableDataset whose source has no length
        return None


def _is_same(first: Any, second: Any) -> bool:
    (leaves, form), (others, other_form) = tree_flatten(first), tree_flatten(second)
    return form == other_form and all(map(_is_equal, leaves, others))


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        first, second = first.numpy(force=True), second.numpy(force=True)
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return (first.shape, first.dtype, first.tobytes()) == (second.shape, second.dtype, second.tobytes())
    return bool(first == second) or not isinstance(first, (int, float, str, bytes, bool))
