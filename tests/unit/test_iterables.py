"""Iterable data sets are read by position: each sample once an epoch, the same ones whoever reads them."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.layers import check_data, check_job, is_in_order
from zooid.schedule.samples import SamplePlan, split_grains
from zooid.worker.samples.sample_supply import OwnGrains, open_supply

NUM_SAMPLES = 10


class Numbered(IterableDataset[tuple[torch.Tensor, int]]):
    """Sample n of epoch e is 100 e + n; counts how often it was begun."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self.num_samples = num_samples
        self.num_begun = 0
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        self.num_begun += 1
        for position in range(self.num_samples):
            number = 100 * self.epoch + position
            yield torch.full((3,), float(number)), number


class Sized(Numbered):
    def __len__(self) -> int:
        return self.num_samples


class Failing(Sized):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for sample in super().__iter__():
            if sample[1] == 7:
                raise OSError("connection lost")
            yield sample


class Shuffled(Sized):
    """With random numbers that belong to nobody."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self._draw = draw

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return ((values + self._draw(), number) for values, number in super().__iter__())


class Plain:
    """Iterable without being a data set of torch's."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.eye(3))


def job_of(data: Any, **fields: Any) -> Job:
    settings: dict[str, Any] = {"batch_size": 4, "grain_size": 2, "epochs": 2} | fields
    return Job(
        model=lambda: nn.Linear(3, 200),
        loss=F.cross_entropy,
        data=lambda: data,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        **settings,
    )


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shares", [(1,), (1, 1), (2, 1)])
def test_every_sample_is_read_once_an_epoch_by_whoever_owns_it(shares: tuple[int, ...], num_workers: int) -> None:
    job = job_of(Sized(), data_workers=num_workers)
    data = check_data(job)
    samples = SamplePlan.of(job, len(data), 2, is_in_order=is_in_order(data))
    read: dict[int, list[int]] = {step: [] for step in range(samples.num_steps)}
    for replica in range(len(shares)):
        with open_supply(job, data, samples, _deal(shares, replica), reads=True, pin=False) as reading:
            for step in range(samples.num_steps):
                for grain in _own(samples, step, shares, replica):
                    read[step] += reading.train(step, grain).target.tolist()
    assert [sorted(numbers) for numbers in read.values()] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [100, 101, 102, 103], [104, 105, 106, 107], [108, 109]
    ]  # fmt: skip


def _deal(shares: tuple[int, ...], replica: int) -> OwnGrains:
    return lambda _, num_grains: split_grains(num_grains, shares)[replica]


def _own(samples: SamplePlan, step: int, shares: tuple[int, ...], replica: int) -> tuple[int, ...]:
    return split_grains(samples.num_grains(step), shares)[replica]


def test_reading_begins_anywhere_and_a_step_can_be_read_again() -> None:
    stream = Sized()
    data = check_data(job_of(stream))
    assert data[17][1] == 107
    assert data[19][1] == 109
    assert stream.num_begun == 1, "what lies between is skipped"
    assert data[18][1] == 108
    assert data[3][1] == 3
    assert stream.num_begun == 3


def test_a_number_of_samples_makes_an_epoch_of_an_endless_stream() -> None:
    data = check_data(job_of(Numbered(10**9), num_samples=6))
    assert len(data) == 6
    assert data[6][1] == 100


def test_any_iterable_will_do() -> None:
    data = check_data(job_of(Plain(), num_samples=3, batch_size=2))
    assert data[2].tolist() == [0.0, 0.0, 1.0]


def test_a_job_may_train_and_evaluate_on_iterable_data_sets() -> None:
    checked = check_job(job_of(Sized(), evaluation=Sized))
    assert checked.num_samples == NUM_SAMPLES
    assert checked.example.target.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        (
            Numbered(),
            {},
            "returned a Numbered, an iterable without a length; give job.num_samples, the",
        ),
        (Sized(), {"num_samples": 11}, r"job.num_samples is 11, but job.data\(\) has 10 samples; give at most 10"),
        (
            Numbered(7),
            {"num_samples": 8},
            r"job.data\(\) ended after 7 samples of epoch 0, but 8 are expected; correct",
        ),
        (Failing(), {}, r"job.data\(\) raised OSError at position 7 of epoch 0: connection lost; correct or leave out"),
        (iter([1, 2]), {}, "returned a list_iterator, which can be read only once; return an object whose __iter__"),
        (DataLoader(Sized()), {}, "returned a DataLoader; return its data set instead, and give its batch_size"),
        (Sized(), {"data_workers": 2}, r"job.data_workers is 2, but job.data\(\) is iterable, .* give 1 or 0"),
        (Shuffled(random.random), {}, r"sample 0 of job.data\(\) differs when it is read again; .* set_epoch"),
        (Shuffled(np.random.rand), {}, "differs when it is read again"),
        (Shuffled(lambda: float(torch.rand(1))), {}, "differs when it is read again"),
        ([(torch.ones(3), 1)] * 9, {"num_samples": 9}, "job.num_samples is 9, but job.data.. has its own length"),
        (Sized(), {"evaluation": Numbered}, r"job.evaluation\(\) returned a Numbered, an iterable without a length"),
    ],
)
def test_what_cannot_be_read_by_position_is_refused(data: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_job(job_of(data, **fields))
