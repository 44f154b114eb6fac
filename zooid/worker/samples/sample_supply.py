"""The samples that a member reads: the grains of its replica, step after step, and those of evaluation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zooid.core.jobs.job import Job
from zooid.layers import check_evaluation
from zooid.schedule.samples import SamplePlan
from zooid.worker.samples.sample_reader import Grain, GrainReader, ReadGrain

OwnGrains = Callable[[int | None, int], Sequence[int]]
"""(step, its number of grains) -> the grains of the member's replica; the step is None in evaluation."""


@dataclass(frozen=True)
class SampleSupply:
    """The functions with which the first and the last stage of a replica read their samples."""

    train: ReadGrain
    evaluate: ReadGrain
    evaluation_sizes: "EvaluationSizes | None"
    """Sizes of the evaluation data; None where the job evaluates nothing."""


@dataclass(frozen=True)
class EvaluationSizes:
    """The evaluation data, cut in order into batches and grains of the sizes that training has."""

    num_samples: int
    batch_size: int
    grain_size: int

    def grains(self, batch: int) -> list[npt.NDArray[np.int64]]:
        """The samples of each grain of a batch; empty after the last batch."""
        start = batch * self.batch_size
        end = min(self.num_samples, start + self.batch_size)
        return [np.arange(first, min(first + self.grain_size, end)) for first in range(start, end, self.grain_size)]


@contextmanager
def open_supply(
    job: Job, data: Any, samples: SamplePlan, own_grains: OwnGrains, *, reads: bool, pin: bool
) -> Iterator[SampleSupply]:
    """Readers for one member, whose processes end with the context; `reads` says whether its stage needs samples.

    `own_grains` and `samples` are asked for every step, so that readers follow a roster that gives the member other
    grains, and other batch sizes.
    """
    evaluation = check_evaluation(job)
    sizes = EvaluationSizes(len(evaluation), samples.batch_size, samples.grain_size) if evaluation is not None else None

    def training_grains(first_step: int) -> Iterator[Grain]:
        step = first_step
        while step < samples.num_steps:  # which changes with the batch size
            grains = samples.grains(step)
            for grain in own_grains(step, len(grains)):
                yield step, grain, grains[grain].tolist()
            step += 1

    def evaluation_grains(first_batch: int) -> Iterator[Grain]:
        assert sizes is not None
        batch = first_batch
        while grains := sizes.grains(batch):
            for grain in own_grains(None, len(grains)):
                yield batch, grain, grains[grain].tolist()
            batch += 1

    def training_samples(step: int, grain: int) -> list[int]:
        return list(samples.grains(step)[grain].tolist())

    def evaluation_samples(batch: int, grain: int) -> list[int]:
        assert sizes is not None
        return list(sizes.grains(batch)[grain].tolist())

    num_workers = job.data_workers if reads else 0
    training = GrainReader(job, data, training_grains, training_samples, num_workers=num_workers, pin=pin)
    num_evaluating = num_workers if evaluation is not None else 0
    evaluating = GrainReader(
        job, evaluation, evaluation_grains, evaluation_samples, num_workers=num_evaluating, pin=pin
    )
    try:
        yield SampleSupply(training.read, evaluating.read, sizes)
    finally:
        training.close()
        evaluating.close()
