"""Which samples a step owns, which grain they are in, who computes it, and with which random numbers.

All of it follows from the seed, the epoch and the step, whoever computes; so a step that is run again, by other members
in another layout, is the same step, and every sample counts exactly once per epoch.
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
    """Samples of each shard, where the data set lies in shards; then few of them are in use at a time."""
    is_in_order: bool = False
    """Whether samples can only be read one after the other; then their positions count on over the epochs."""

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
        """The last step of an epoch is short where the batch size does not divide the data set."""
        return -(-self.num_samples // self.batch_size)

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def step_size(self, step: int) -> int:
        """Samples of a step."""
        start = (step % self.steps_per_epoch) * self.batch_size
        return min(self.batch_size, self.num_samples - start)

    def num_samples_before(self, step: int) -> int:
        """Samples of all steps before this one, over all epochs."""
        epochs, steps = divmod(step, self.steps_per_epoch)
        return epochs * self.num_samples + steps * self.batch_size

    def num_grains(self, step: int) -> int:
        return -(-self.step_size(step) // self.grain_size)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The indices of an epoch's samples, the same everywhere; a permutation, unless they are read in order."""
        if self.is_in_order:
            return np.arange(epoch * self.num_samples, (epoch + 1) * self.num_samples)
        return _order(self.seed, epoch, self.num_samples, self.shard_sizes)

    def grains(self, step: int) -> list[npt.NDArray[np.int64]]:
        """Sample indices of every grain of a step, in grain order; only the last one may be smaller."""
        if not 0 <= step < self.num_steps:
            raise ScheduleError(f"step {step} is outside of the run's {self.num_steps} steps")
        start = (step % self.steps_per_epoch) * self.batch_size
        own = self.order(self.epoch_of(step))[start : start + self.step_size(step)]
        return [own[at : at + self.grain_size] for at in range(0, len(own), self.grain_size)]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num_samples: int, shard_sizes: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """From a counter-based generator; kept while its epoch lasts, since millions of samples take a while."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "order", epoch)))
    order = windowed_order(generator, shard_sizes) if shard_sizes else generator.permutation(num_samples)
    order.setflags(write=False)
    return order


def split_grains(num_grains: int, shares: Sequence[int]) -> list[tuple[int, ...]]:
    """Consecutive whole grains for each replica, in proportion to its share of a full step (largest remainders).

    >>> split_grains(8, (4, 4))
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> split_grains(3, (4, 4))
    [(0, 1), (2,)]
    """
    total = sum(shares)
    counts = [num_grains * share // total for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda r: (-(num_grains * shares[r] % total), r))
    for replica in by_remainder[: num_grains - sum(counts)]:
        counts[replica] += 1
    ends = np.cumsum(counts).tolist()
    return [tuple(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]


def even_shares(num_grains: int, num_replicas: int) -> tuple[int, ...]:
    """Whole grains of a full step for equal replicas; the first ones take what does not divide."""
    return tuple(len(own) for own in split_grains(num_grains, (1,) * num_replicas))


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from what it depends on, the same on every machine and in every process."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
