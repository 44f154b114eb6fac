"""The samples of each step, their grains, the replicas that compute these, and their random seeds.

All of this follows from the seed, the step, and the batch sizes of the steps before it. So a step that is repeated by
other members, in another layout, is the same step, and every sample counts exactly once per epoch.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import structs

from zooid.core.errors import ScheduleError
from zooid.core.jobs.job import Job
from zooid.core.runs.batch_history import BatchPiece
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.schedule.shard_order import check_sizes, windowed_order


@dataclass(frozen=True)
class _Span:
    """Steps of one batch size. The samples of a step continue where those of the step before end."""

    first_step: int
    num_before: int
    """Number of samples in all earlier steps, over all epochs."""
    batch_size: int

    def num_samples_before(self, step: int, per_epoch: int) -> int:
        """Number of samples in all steps before this one, if an epoch has so many samples."""
        epoch, position = divmod(self.num_before, per_epoch)
        num_steps = step - self.first_step
        if num_steps < (num_first := -(-(per_epoch - position) // self.batch_size)):
            return self.num_before + num_steps * self.batch_size
        epochs, steps = divmod(num_steps - num_first, -(-per_epoch // self.batch_size))
        return (epoch + 1 + epochs) * per_epoch + steps * self.batch_size

    def end_step(self, epochs: int, per_epoch: int) -> int:
        """The step after the last one of the run, if the batch size stays."""
        epoch, position = divmod(self.num_before, per_epoch)
        num_first = -(-(per_epoch - position) // self.batch_size)
        return self.first_step + num_first + (epochs - epoch - 1) * -(-per_epoch // self.batch_size)


@dataclass(kw_only=True)
class SamplePlan:
    """The order of samples of a whole run. Past steps never change, while `follow` may change the size of later ones.

    The last step of an epoch is short if no whole batch is left for it.
    """

    num_samples: int
    batch_size: int
    """Number of samples in a step before the first of `batches` begins."""
    grain_size: int
    epochs: int
    seed: int
    shard_sizes: tuple[int, ...] = ()
    """Number of samples in each shard, if the data set is in shards; the order then uses few shards at a time."""
    is_in_order: bool = False
    """Whether samples can only be read in sequence; their positions then continue from one epoch to the next."""
    batches: tuple[BatchPiece, ...] = ()
    """Later batch sizes, in the order of the steps with which they begin."""

    def __post_init__(self) -> None:
        check_sizes(self.shard_sizes, self.num_samples)
        self.follow(self.batches)

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

    def follow(self, batches: tuple[BatchPiece, ...]) -> None:
        """Take the batch sizes of this history. A piece that would begin after the last step has no effect."""
        self.batches = batches
        self._spans = [_Span(0, 0, self.batch_size)]
        for piece in batches:
            num_before = self._spans[-1].num_samples_before(piece.first_step, self.num_samples)
            if num_before >= self.epochs * self.num_samples:
                break
            self._spans.append(_Span(piece.first_step, num_before, piece.batch_size))

    @property
    def num_steps(self) -> int:
        return self._spans[-1].end_step(self.epochs, self.num_samples)

    @property
    def max_grains(self) -> int:
        """The largest number of grains that a step of the run has, as far as its batch sizes are known."""
        largest = max(span.batch_size for span in self._spans)
        return -(-min(largest, self.num_samples) // self.grain_size)

    def epoch_of(self, step: int) -> int:
        return self.num_samples_before(step) // self.num_samples

    def ends_epoch(self, num_steps: int) -> bool:
        """Whether an epoch is complete after so many steps."""
        return self.num_samples_before(num_steps) % self.num_samples == 0

    def next_epoch(self, step: int) -> int:
        """The first step of the epoch after that of this step, if the batch size stays."""
        return step + -(-(self.num_samples - self._start(step)) // self.batch_size_of(step))

    def batch_size_of(self, step: int) -> int:
        """Number of samples in a step, unless it is the short last one of its epoch."""
        return self._span_of(step).batch_size

    def step_size(self, step: int) -> int:
        """Number of samples in a step."""
        return min(self.batch_size_of(step), self.num_samples - self._start(step))

    def num_samples_before(self, step: int) -> int:
        """Number of samples in all earlier steps, over all epochs."""
        return self._span_of(step).num_samples_before(step, self.num_samples)

    def num_grains(self, step: int) -> int:
        return -(-self.step_size(step) // self.grain_size)

    def _span_of(self, step: int) -> _Span:
        return next((span for span in reversed(self._spans) if span.first_step <= step), self._spans[0])

    def _start(self, step: int) -> int:
        """Position of a step's first sample in its epoch."""
        return self.num_samples_before(step) % self.num_samples

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Sample indices of an epoch, the same on every member: a permutation, unless samples are read in sequence."""
        if self.is_in_order:
            return np.arange(epoch * self.num_samples, (epoch + 1) * self.num_samples)
        return _order(self.seed, epoch, self.num_samples, self.shard_sizes)

    def grains(self, step: int) -> list[npt.NDArray[np.int64]]:
        """Sample indices of each grain of a step; only the last grain may be smaller."""
        if not 0 <= step < self.num_steps:
            raise ScheduleError(f"step {step} is not one of the run's {self.num_steps} steps")
        start = self._start(step)
        indices = self.order(self.epoch_of(step))[start : start + self.step_size(step)]
        return [indices[first : first + self.grain_size] for first in range(0, len(indices), self.grain_size)]


def samples_of(manifest: CheckpointManifest) -> SamplePlan:
    """Return which samples each step of a checkpoint's run owns."""
    return SamplePlan(**structs.asdict(manifest.samples), batches=manifest.ledger.batches)


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
