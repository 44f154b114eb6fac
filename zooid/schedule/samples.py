"""The samples of each step, their grains, the replicas that compute these, and their random seeds.

All of this follows from the seed, the epoch and the step alone. So a step that is repeated by other members, in another
layout, is the same step, and every sample counts exactly once per epoch.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zooid.core.errors import ScheduleError
from zooid.core.jobs.job import Job
from zooid.schedule.shard_order import check_sizes, windowed_order


@dataclass(frozen=True, kw_only=True)
class SamplePlan:
    """The order of samples of a whole run."""

    num_samples: int
    batch_size: int
    grain_size: int
    epochs: int
    seed: int
    shard_sizes: tuple[int, ...] = ()
    """Number of samples in each shard, if the data set is in shards; the order then uses few shards at a time."""
    is_in_order: bool = False
    """Whether samples can only be read in sequence; their positions then continue from one epoch to the next."""

    def __post_init__(self) -> None:
        check_sizes(self.shard_sizes, self.num_samples)

    @staticmethod
    def of(
        job: Job, num_samples: int, grain_size: int, shard_sizes: Sequence[int] = (), *, is_in_order: bool = False
    ) -> "SamplePlan":
        """The samples of a job, cut into grains of this size."""
        return SamplePlan(
            num_samples=num_samples,
            batch_size=job.batch_size,
            grain_size=grain_size,
            epochs=job.epochs,
            seed=job.seed,
            shard_sizes=tuple(shard_sizes),
            is_in_order=is_in_order,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps; the last one is short if the batch size does not divide the data set."""
        return -(-self.num_samples // self.batch_size)

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def step_size(self, step: int) -> int:
        """Number of samples in a step."""
        start = (step % self.steps_per_epoch) * self.batch_size
        return min(self.batch_size, self.num_samples - start)

    def num_samples_before(self, step: int) -> int:
        """Number of samples in all earlier steps, over all epochs."""
        epochs, steps = divmod(step, self.steps_per_epoch)
        return epochs * self.num_samples + steps * self.batch_size

    def num_grains(self, step: int) -> int:
        return -(-self.step_size(step) // self.grain_size)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Sample indices of an epoch, the same on every member: a permutation, unless samples are read in sequence."""
        if self.is_in_order:
            return np.arange(epoch * self.num_samples, (epoch + 1) * self.num_samples)
        return _order(self.seed, epoch, self.num_samples, self.shard_sizes)

    def grains(self, step: int) -> list[npt.NDArray[np.int64]]:
        """Sample indices of each grain of a step; only the last grain may be smaller."""
        if not 0 <= step < self.num_steps:
            raise ScheduleError(f"step {step} is not one of the run's {self.num_steps} steps")
        start = (step % self.steps_per_epoch) * self.batch_size
        indices = self.order(self.epoch_of(step))[start : start + self.step_size(step)]
        return [indices[first : first + self.grain_size] for first in range(0, len(indices), self.grain_size)]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num_samples: int, shard_sizes: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The order of an epoch, from a counter-based generator; cached, since millions of samples take a while."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "order", epoch)))
    order = windowed_order(generator, shard_sizes) if shard_sizes else generator.permutation(num_samples)
    order.setflags(write=False)
    return order


def split_grains(num_grains: int, shares: Sequence[int]) -> list[tuple[int, ...]]:
    """Give each replica consecutive grains in proportion to its share, by largest remainders.

    >>> split_grains(8, (4, 4))
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> split_grains(3, (4, 4))
    [(0, 1), (2,)]
    """
    total = sum(shares)
    counts = [num_grains * share // total for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda replica: (-(num_grains * shares[replica] % total), replica))
    for replica in by_remainder[: num_grains - sum(counts)]:
        counts[replica] += 1
    ends = np.cumsum(counts).tolist()
    return [tuple(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]


def even_shares(num_grains: int, num_replicas: int) -> tuple[int, ...]:
    """Equal shares of a full step; the first replicas get the remainder."""
    return tuple(len(grains) for grains in split_grains(num_grains, (1,) * num_replicas))


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on these parts alone, and not on the machine or process."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
