"""Which samples a member reads, in which order: its replica's grains, step after step, and those of evaluation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zooid.core.jobs.job import Job
from zooid.layers import check_evaluation
from zooid.schedule.samples import SamplePlan
from zooid.worker.samples.sample_reader import GrainReader
from zooid.worker.step.stage_runner import Read

Upcoming = tuple[int, int, Sequence[int]]
Deal = Callable[[int | None, int], Sequence[int]]
"""(step, its number of grains) -> the grains of the member's replica; the step is None in evaluation."""


@dataclass(frozen=True)
class Supply:
    """What the first and the last stage of a replica read."""

    train: Read
    evaluate: Read
    evaluation_sizes: "EvaluationSizes | None"
    """None where the job evaluates nothing."""


@dataclass(frozen=True)
class EvaluationSizes:
    """The evaluation data in batches, and these in grains, as training has them; in order."""

    num_samples: int
    batch_size: int
    grain_size: int

    def grains(self, batch: int) -> list[npt.NDArray[np.int64]]:
        """Empty after the last batch."""
        start = batch * self.batch_size
        end = min(self.num_samples, start + self.batch_size)
        return [np.arange(at, min(at + self.grain_size, end)) for at in range(start, end, self.grain_size)]

    def __call__(self, batch: int) -> list[int]:
        return [len(grain) for grain in self.grains(batch)]


@contextmanager
def supply(job: Job, data: Any, samples: SamplePlan, deal: Deal, *, reads: bool, pin: bool) -> Iterator[Supply]:
    """Readers for one member; `reads` is whether its stage needs samples at all. Leaving ends their processes.

    `deal` is asked anew for every step, so that readers follow when a roster gives the member other grains.
    """
    evaluation = check_evaluation(job)
    sizes = EvaluationSizes(len(evaluation), samples.batch_size, samples.grain_size) if evaluation is not None else None

    def of_training(first_step: int) -> Iterator[Upcoming]:
        for step in range(first_step, samples.num_steps):
            grains = samples.grains(step)
            for grain in deal(step, len(grains)):
                yield step, grain, grains[grain].tolist()

    def of_evaluation(first_batch: int) -> Iterator[Upcoming]:
        assert sizes is not None
        batch = first_batch
        while grains := sizes.grains(batch):
            for grain in deal(None, len(grains)):
                yield batch, grain, grains[grain].tolist()
            batch += 1

    num_workers = job.data_workers if reads else 0
    training = GrainReader(job, data, of_training, num_workers=num_workers, pin=pin)
    evaluating = GrainReader(
        job, evaluation, of_evaluation, num_workers=num_workers if evaluation is not None else 0, pin=pin
    )
    try:
        yield Supply(training.read, evaluating.read, sizes)
    finally:
        training.close()
        evaluating.close()
