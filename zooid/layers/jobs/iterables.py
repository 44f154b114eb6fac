"""Iterable data sets: samples that can only be read one after the other, given by their position."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset

from zooid.core.errors import JobError

_NUM_COMPARED = 8
"""Samples that are read twice when a job is checked. One that was shuffled anew shows among the first."""


def is_iterable(data: Any) -> bool:
    """Whether samples of a data set cannot be asked for by their index."""
    is_map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return isinstance(data, (IterableDataset, DataLoader)) or (hasattr(data, "__iter__") and not is_map_style)


def is_in_order(data: Any) -> bool:
    """Whether a checked data set is read in order, and not shuffled."""
    return isinstance(data, OrderedSamples)


class OrderedSamples:
    """An iterable data set, of which each member reads everything and keeps what belongs to its grains.

    An index counts on over the epochs: sample p of epoch e is at e · num_samples + p. So positions mean the same to
    every member, and reading may begin anywhere.
    """

    def __init__(self, name: str, data: Any, num_samples: int | None) -> None:
        """`name` is the field of the job that made the data set."""
        self._name = name
        self._data = data
        self._num_samples = _checked_size(name, data, num_samples)
        self._iterator: Iterator[Any] = iter(())
        self._num_read = 0
        self._place: tuple[int, int] | None = None
        """Process and epoch of the iterator: one that was inherited by a fork may share the position in a file."""

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        epoch, position = divmod(index, self._num_samples)
        if self._place != (os.getpid(), epoch) or position < self._num_read:
            self._begin(epoch)
        while True:
            sample = self._next(epoch)
            if self._num_read > position:
                return sample

    def check_repeatable(self) -> None:
        """Refuse a data set whose first samples are others when it is read again, with other random numbers."""
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            passes = [self._first_samples(seed) for seed in (1, 2)]
        finally:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])
            random.setstate(before[2])
        for position, (first, second) in enumerate(zip(*passes, strict=True)):
            if not _is_same(first, second):
                raise JobError(
                    f"sample {position} of job.{self._name}() is another one when it is read again; each member reads "
                    "the samples by itself, so they must be the same in every pass of an epoch: shuffle and augment "
                    "with a generator that is seeded in __iter__, by the epoch where there is a set_epoch(epoch)"
                )

    def _first_samples(self, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self._place = None
        return [self[position] for position in range(min(_NUM_COMPARED, self._num_samples))]

    def _begin(self, epoch: int) -> None:
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        self._iterator = iter(self._data)
        self._num_read = 0
        self._place = (os.getpid(), epoch)

    def _next(self, epoch: int) -> Any:
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise JobError(
                f"job.{self._name}() ended after {self._num_read} samples of epoch {epoch}, but {self._num_samples} "
                f"are expected; correct {'job.num_samples' if self._name == 'data' else 'its length'}, or let it go on"
            ) from None
        except Exception as error:
            raise JobError(
                f"job.{self._name}() raised {type(error).__name__} at position {self._num_read} of epoch {epoch}: "
                f"{error}; mend or leave out this sample"
            ) from error
        self._num_read += 1
        return sample


def _checked_size(name: str, data: Any, num_samples: int | None) -> int:
    if isinstance(data, DataLoader):
        raise JobError(
            f"job.{name}() returned a DataLoader; return the data set that is in it: its batch_size, collate_fn and "
            "num_workers are job.batch_size, job.collate and job.data_workers"
        )
    if isinstance(data, Iterator):
        raise JobError(
            f"job.{name}() returned a {type(data).__name__}, which can be read only once; return an object whose "
            "__iter__ begins anew, such as a torch.utils.data.IterableDataset"
        )
    size = _length(data)
    if num_samples is None and size is None:
        fix = "job.num_samples, the samples of an epoch" if name == "data" else "it a __len__, or return a list"
        raise JobError(f"job.{name}() returned a {type(data).__name__}, an iterable without a length; give {fix}")
    if num_samples is not None and size is not None and num_samples > size:
        raise JobError(f"job.num_samples is {num_samples}, but job.{name}() has {size} samples; give at most {size}")
    return num_samples if num_samples is not None else size or 0


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # of an IterableDataset whose source has no length, too
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
